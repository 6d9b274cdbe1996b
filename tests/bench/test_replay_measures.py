"""Numbers of a replay that was made by hand, and what seeds together say."""

from typing import Any

import httpx
import numpy as np
import pytest
from demo.builders import planned, replay, result, session, workload

from agentkv import metrics
from agentkv.bench import replay_calibrate, replay_counters
from agentkv.bench.replay_calibrate import NUM_ROUNDS, Calibration
from agentkv.bench.replay_counters import counted, parse_counters, read_counters
from agentkv.bench.replay_measures import Played, busy_s, measure, mismatches, resume_times_s
from agentkv.bench.replay_stats import RATIOS, compare, estimate, summarize
from agentkv.bench.replay_workloads import stamped, waits_note
from agentkv.demo.client import TurnRequest, TurnResult
from agentkv.demo.replay import PlayedTurn, Replay
from agentkv.demo.workload import PromptCounter, cap_waits


def played(counts: dict[str, float | None] | None = None, **second: Any) -> Played:
    """One session of two turns; the second knows 64 tokens. Each turn starts two seconds on."""
    turns = {("a", 0): result(ttft_s=0.5, gaps_s=(0.1,)), ("a", 1): result(**second)}
    plan = workload(session("a", planned(), planned(known_tokens=64)))
    return Played(plan, replay(turns), counts or {})


def test_only_resumed_turns_count_for_the_first_token() -> None:
    row = measure(played(ttft_s=0.2, gaps_s=(0.3,)), block_size=32)
    assert row["resume_ttft_p50_s"] == row["resume_ttft_p99_s"] == row["resume_ttft_mean_s"] == 0.2
    assert row["resumes"] == 1
    # Gaps between tokens count in every turn.
    assert row["itl_p50_s"] == pytest.approx(0.2)
    assert row["turns_per_hour"] == pytest.approx(2 * 360)
    assert row["sessions_per_hour"] == pytest.approx(360)


@pytest.mark.parametrize(("cached", "again"), [(0, 64), (32, 32), (64, 0), (96, 0)])
def test_tokens_computed_again_are_those_known_and_not_found(cached: int, again: int) -> None:
    row = measure(played(cached_tokens=cached), block_size=32)
    assert (row["recomputed_tokens"], row["reusable_tokens"]) == (again, 64)
    assert row["recomputed_share"] == again / 64


def test_known_tokens_are_those_of_the_server_that_counts() -> None:
    # Another model's tokenizer makes three times as many tokens of the same prompt.
    row = measure(played(prompt_tokens=300, cached_tokens=0), block_size=32)
    assert row["reusable_tokens"] == 192


def test_pool_time_of_a_pause_is_what_was_found_in_the_pool() -> None:
    counts: dict[str, float | None] = {"local_hit_tokens": 300.0, "external_hit_tokens": 100.0}
    row = measure(played(counts, cached_tokens=64), block_size=32)
    # The pause of 1.5 s, 64 tokens found, three quarters of all that was found were in the pool.
    assert row["paused_pool_token_s"] == pytest.approx(0.75 * 64 * 1.5)
    assert measure(played(cached_tokens=64), block_size=32)["paused_pool_token_s"] is None


def test_a_changed_token_or_prompt_is_a_mismatch() -> None:
    right = played(cached_tokens=64).replay
    assert mismatches(right, played(cached_tokens=0).replay) == 0
    assert mismatches(right, played(token_ids=(1, 3)).replay) == 1
    assert mismatches(right, played(prompt_tokens=101).replay) == 1


def test_load_is_the_time_in_which_a_turn_is_under_way() -> None:
    spans = [(0.0, 2.0), (1.0, 1.5), (1.0, 3.0), (5.0, 6.0)]
    turns = {
        ("a", number): PlayedTurn("a", number, start, end, result())
        for number, (start, end) in enumerate(spans)
    }
    assert busy_s(Replay(0.0, 10.0, turns)) == pytest.approx(4.0)
    assert len(resume_times_s(Replay(0.0, 10.0, turns))["a"]) == 3


PAGE = f"""\
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{{engine="0",source="local_cache_hit"}} 10.0
vllm:prompt_tokens_by_source_total{{engine="1",source="local_cache_hit"}} 5.0
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} 7.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{{engine="0",le="1.0"}} 3.0
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf"}} 9.0
vllm:iteration_tokens_total_count{{engine="0"}} 9.0
vllm:iteration_tokens_total_sum{{engine="0"}} 90.0
# TYPE {metrics.PREFETCH_OUTCOMES.name} counter
{metrics.PREFETCH_OUTCOMES.name}_total{{engine="0",outcome="useful"}} 4.0
"""


def test_counters_are_summed_over_engines_and_counted_from_a_start() -> None:
    before, after = parse_counters(PAGE), parse_counters(PAGE.replace("10.0", "30.0"))
    row = counted(after.since(before), is_ours=True)
    assert row["local_hit_tokens"] == 20 and row["computed_tokens"] == 0
    whole = counted(before, is_ours=True)
    assert (whole["local_hit_tokens"], whole["steps"]) == (15, 9)
    assert (whole["prefetch_useful"], whole["prefetch_late"]) == (4, 0)


def test_what_a_server_does_not_count_is_unknown_and_not_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> httpx.Response:
        raise httpx.ConnectError("no")

    monkeypatch.setattr(replay_counters.httpx, "get", refuse)
    row = counted(read_counters("http://x"), is_ours=False)
    assert set(row.values()) == {None}


def rows(system: str, values: list[float], **fields: Any) -> list[dict[str, Any]]:
    base = {name: 1.0 for name in (*RATIOS, "recomputed_share", "busy_share")}
    place = {"oversubscription": 2.0, "dram": 1.0, "x": 1.0, "token_mismatches": 0}
    return [
        {**base, **place, "paused_pool_token_s": None, "system": system, "seed": seed}
        | {"resume_ttft_p95_s": value, **fields}
        for seed, value in enumerate(values)
    ]


def test_ratios_are_of_paired_seeds() -> None:
    # Seeds differ a hundredfold; in every one ours takes half the time.
    theirs = rows("native", [1.0, 10.0, 100.0])
    ours = rows("agentkv:lru", [50.0, 5.0, 0.5])
    for row in ours:
        row["seed"] = 2 - row["seed"]
    (found,) = compare([*theirs, *ours])
    assert (found["system"], found["over"]) == ("agentkv:lru", "native")
    assert found["ratios"]["resume_ttft_p95_s"] == {
        "median": 0.5,
        "low": 0.5,
        "high": 0.5,
        "seeds": 3,
    }


def test_a_ratio_over_nothing_is_left_out() -> None:
    theirs = rows("infinite", [1.0, 1.0], recomputed_tokens=0)
    (found,) = compare([*theirs, *rows("agentkv", [1.0, 2.0])])
    assert found["ratios"]["recomputed_tokens"] is None
    assert found["ratios"]["resume_ttft_p95_s"]["median"] == 1.5


def test_medians_and_intervals_over_seeds() -> None:
    (cell,) = summarize(rows("stock", [3.0, 1.0, 2.0], token_mismatches=1))
    found = cell["estimates"]["resume_ttft_p95_s"]
    assert (found["median"], found["low"], found["high"]) == (2.0, 1.0, 3.0)
    assert (cell["token_mismatches"], cell["seeds"]) == (3, 3)
    assert cell["estimates"]["paused_pool_token_s"] is None
    assert estimate([1.0]) is not None and estimate([1.0]).low is None  # type: ignore[union-attr]


def test_the_bootstrap_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        found = estimate(list(rng.normal(5.0, 1.0, 20)))
        assert found is not None and found.low is not None and found.high is not None
        hits += found.low <= 5.0 <= found.high
    assert hits >= 176


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A server whose pool holds one context and whose DRAM holds all; 100, 10 and 1 ms."""
    texts: list[str] = []

    def answer(_client: Any, request: TurnRequest) -> TurnResult:
        text = request.messages[0]["content"]
        is_local, is_known = texts[-1:] == [text], text in texts
        texts.append(text)
        ttft_s = 0.001 if is_local else 0.010 if is_known else 0.100
        return result(ttft_s=ttft_s, cached_tokens=96 if is_known else 0)

    monkeypatch.setattr(replay_calibrate, "send", answer)
    monkeypatch.setattr(replay_calibrate, "REST_S", 0.0)
    return texts


class _Fill:
    def cut(self, num_tokens: int, key: str) -> str:
        return f"{key}/{num_tokens}"


class _Setup:
    longest_tokens = 1_000


def test_calibration_is_what_computing_and_loading_take_beyond_a_hit(asked: list[str]) -> None:
    server = type("S", (), {"url": "http://x"})()
    found = replay_calibrate.calibrate(server, _Fill(), _Setup())  # type: ignore[arg-type]
    assert found.rounds == NUM_ROUNDS and found.context_tokens == 1_000 - 128
    assert found.recompute_s == pytest.approx(0.099) and found.reload_s == pytest.approx(0.009)
    assert found.ratio == pytest.approx(11.0)
    assert len(asked) == 4 * (NUM_ROUNDS + 1)


def test_nothing_sound_is_no_calibration() -> None:
    assert Calibration(100, 0, None, None).ratio is None
    assert Calibration(100, 3, 0.1, -0.001).as_json()["recompute_over_reload"] is None


def test_a_stamp_changes_every_prompt_and_keeps_what_they_share(counter: PromptCounter) -> None:
    turns = []
    for words in ("hello there", "hello there, once more"):
        messages = ({"role": "user", "content": words},)
        size = len(counter.ids(messages))
        turns.append(planned(messages=messages, prompt_tokens=size, known_tokens=0))
    plan = workload(session("a", *turns), session("b", *turns))
    found = stamped(plan, "0-ff", counter)
    assert [each.session_id for each in found.sessions] == ["0-ff-a", "0-ff-b"]
    for each in found.sessions:
        for turn in each.turns:
            assert turn.messages[0]["content"].startswith("Run 0-ff.\nhello")
            assert turn.prompt_tokens == len(counter.ids(turn.messages))
    assert plan.sessions[0].turns[0].messages[0]["content"] == "hello there"


def test_what_became_of_the_waits_is_said() -> None:
    plan = workload(session("a", planned(recorded_wait_s=7.0), planned()))
    assert "played as recorded" in waits_note(cap_waits(plan, float("inf")))
    assert "cut at 2 s: 1 were longer; the longest of 1 is 7 s" in waits_note(cap_waits(plan, 2.0))
