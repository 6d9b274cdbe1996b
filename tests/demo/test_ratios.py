"""Which ratio rounds count: each must be what it claims, by the server's counts and the ledger."""

import json
from functools import partial
from pathlib import Path

import httpx
import pytest

from agentkv.demo import ratios
from agentkv.demo.ledger_file import LedgerFile, LedgerPause
from agentkv.demo.ratios import (
    PLUGIN,
    PREFETCHED,
    RESIDENT,
    STOCK,
    RatioPlan,
    RatioRounds,
    check_samples,
)
from agentkv.demo.summary import ratio

from .builders import pause_record, resume_record, sample, write_ledger

BLOCK = 32
FULL = 4192  # 131 full blocks of the 4,200 known tokens


def ledger(
    tmp_path: Path, *, gpu: int, dram: int, turn: int = 0
) -> dict[tuple[str, int], LedgerPause]:
    path = tmp_path / "ledger.jsonl"
    resume = resume_record(session_id="ratio-0", gpu_hit_tokens=gpu, dram_hit_tokens=dram)
    write_ledger(path, [pause_record(session_id="ratio-0", turn=turn), resume])
    return LedgerFile(path).pauses()


@pytest.mark.parametrize(
    ("kind", "cached", "problem"),
    [
        ("local_hit", FULL, None),
        ("local_hit", 1024, "only 1024 of 4192 tokens were found"),
        ("recompute", 0, None),
        ("recompute", FULL, "4192 tokens were still cached"),
    ],
)
def test_stock_rounds_are_checked_by_what_the_server_found(
    kind: str, cached: int, problem: str | None
) -> None:
    [checked] = check_samples([sample(kind, cached_tokens=cached)], {}, BLOCK)
    assert checked.problem == problem


def test_a_hold_must_have_come_from_the_pool(tmp_path: Path) -> None:
    hold = sample("hold", cached_tokens=FULL)
    [good] = check_samples([hold], ledger(tmp_path, gpu=FULL, dram=0), BLOCK)
    [bad] = check_samples([hold], ledger(tmp_path, gpu=0, dram=FULL), BLOCK)
    assert good.problem is None
    assert bad.problem == "0 of 4192 tokens came from gpu"


@pytest.mark.parametrize("kind", [PREFETCHED, RESIDENT])
def test_a_prefetched_turn_and_the_one_it_is_held_against_come_from_the_pool(
    tmp_path: Path, kind: str
) -> None:
    resumed = sample(kind, cached_tokens=FULL)
    [good] = check_samples([resumed], ledger(tmp_path, gpu=FULL, dram=0), BLOCK)
    [bad] = check_samples([resumed], ledger(tmp_path, gpu=0, dram=FULL), BLOCK)
    assert good.problem is None and bad.problem is not None


def test_the_servers_rest_alike_and_so_do_the_turns_of_a_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests_s: list[float] = []
    before_s: dict[str, list[float]] = {PLUGIN: [], STOCK: []}
    monkeypatch.setattr(ratios.time, "sleep", rests_s.append)
    plan = RatioPlan(seed=0, num_rounds=1, pool_tokens=4200, block_size=BLOCK)
    for name, found in before_s.items():
        rests_s.clear()
        transport = httpx.MockTransport(partial(answer, rests_s=rests_s, found=found))
        with httpx.Client(base_url="http://x", transport=transport) as client:
            samples = RatioRounds(plan, Cutter(), {})._visit(client, name, 0)
        kinds = [sample.kind for sample in samples]
        if name == STOCK:
            assert kinds == ["local_hit"] * 5 + ["recompute"]
        else:
            assert kinds == ["hold"] * 4 + [RESIDENT, "swap", PREFETCHED]
    near = before_s[PLUGIN][1:6]
    assert near == before_s[STOCK][1:6]
    assert near[4] == before_s[PLUGIN][-1] > near[0], "resident and prefetched, not hold"


class Cutter:
    """`FillText` without a tokenizer."""

    def cut(self, num_tokens: int, key: str) -> str:
        return f"{key} " * (num_tokens // 50)


def answer(request: httpx.Request, rests_s: list[float], found: list[float]) -> httpx.Response:
    """One token; notes how long the server had rested before a turn of the round."""
    if request.headers.get("X-Session-ID", "").startswith("ratio"):
        found.append(rests_s[-1] if rests_s else 0.0)
    usage = {"prompt_tokens": 4200, "prompt_tokens_details": {"cached_tokens": 0}}
    events = ({"choices": [{"delta": {"content": "a"}}]}, {"choices": [], "usage": usage})
    return httpx.Response(200, text="".join(f"data: {json.dumps(each)}\n\n" for each in events))


def test_a_swap_must_have_come_from_dram(tmp_path: Path) -> None:
    swap = sample("swap", turn=1, cached_tokens=FULL)
    [good] = check_samples([swap], ledger(tmp_path, gpu=0, dram=FULL, turn=1), BLOCK)
    [bad] = check_samples([swap], ledger(tmp_path, gpu=FULL, dram=0, turn=1), BLOCK)
    [unseen] = check_samples([swap], {}, BLOCK)
    assert good.problem is None
    assert bad.problem == "0 of 4192 tokens came from dram"
    assert unseen.problem == "the ledger has no resume for it"


def test_a_ratio_is_one_of_medians_over_the_pairs_of_which_both_count() -> None:
    samples = [
        *(sample("local_hit", n, ttft_s=t) for n, t in enumerate((0.020, 0.022, 0.030, 9.0))),
        *(sample("hold", n, ttft_s=t) for n, t in enumerate((0.022, 0.021, 0.030, 9.0))),
    ]
    known = [each.result.ttft_s for each in samples]
    checked = check_samples(
        [
            s if s.kind == "hold" else sample(s.kind, s.round, ttft_s=s.result.ttft_s)
            for s in samples
        ],
        {},
        BLOCK,
    )
    assert known and all(each.problem for each in checked)
    discarded = ratio(checked, "hold", "local_hit")
    assert (discarded.ratio, discarded.pairs, discarded.pairs_discarded) == (None, 0, 4)
    good = ratio(samples[:3] + samples[4:7], "hold", "local_hit")
    assert good.ratio == pytest.approx(0.022 / 0.022)
    assert (good.pairs, good.mismatches) == (3, 0)


def test_different_answers_in_a_round_are_counted() -> None:
    samples = [sample("swap", text="x"), sample("recompute", text="y")]
    assert ratio(samples, "swap", "recompute").mismatches == 1


def test_the_resumes_of_a_round_are_paired_turn_by_turn() -> None:
    samples = [
        *(sample("hold", 0, turn=turn, text=f"answer {turn}") for turn in range(3)),
        *(sample("local_hit", 0, turn=turn, text=f"answer {turn}") for turn in (2, 1, 0)),
        sample("hold", 1, turn=0),
    ]
    paired = ratio(samples, "hold", "local_hit")
    assert (paired.pairs, paired.mismatches) == (3, 0)
