"""From two replays and a ledger, all made by hand, to rows, summary, table, JSON and picture."""

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agentkv.demo.client import TurnResult
from agentkv.demo.ledger_file import LedgerFile, LedgerPause, LedgerResume
from agentkv.demo.picture import COLOURS, draw_picture, pause_segments
from agentkv.demo.replay import Replay
from agentkv.demo.report import pause_table, print_report, telling_rows, write_json
from agentkv.demo.rows import (
    PauseRow,
    mismatched_turns,
    named_pauses,
    pause_rows,
    recomputed_tokens,
)
from agentkv.demo.summary import Ratio, ratio, summarize
from agentkv.demo.workload import Workload

from .builders import (
    BEGAN_AT_S,
    pause_record,
    planned,
    replay,
    result,
    resume_record,
    sample,
    session,
    workload,
    write_ledger,
)

BLOCK = 32
SESSIONS: Workload = workload(
    session(
        "a",
        planned(
            known_tokens=0, wait_s=6.0, recorded_wait_s=51.0, command="cat $(find . -name $x$)"
        ),
        planned(known_tokens=100, prompt_tokens=150),
        planned(known_tokens=150, prompt_tokens=200),
    ),
    session("b", planned(known_tokens=0, tool=None, command=None), planned(known_tokens=100)),
)
RESULTS: dict[tuple[str, int], TurnResult] = {
    ("a", 0): result(),
    ("a", 1): result(prompt_tokens=150, cached_tokens=96, ttft_s=0.02),
    ("a", 2): result(prompt_tokens=200, cached_tokens=128, ttft_s=0.03),
    ("b", 0): result(),
    ("b", 1): result(prompt_tokens=100, cached_tokens=0, ttft_s=0.2),
}
STOCK_RESULTS = {
    key: result(prompt_tokens=value.prompt_tokens, cached_tokens=0, ttft_s=0.2)
    for key, value in RESULTS.items()
}
PREFETCH = {"useful": 3.0, "late": 1.0, "lost": 0.0, "early_byte_s": 5.0}
LEDGER = [
    pause_record(pause_id=1, turn=0, t=BEGAN_AT_S + 0.5),
    pause_record(pause_id=2, turn=0, session_id="b", action="recompute", reason="too short"),
    pause_record(pause_id=1, kind="redecide", action="swap", reason="pressure", t=BEGAN_AT_S + 1.5),
    resume_record(pause_id=1, action="swap", tier="dram", gpu_hit_tokens=0, dram_hit_tokens=96),
    resume_record(pause_id=2, session_id="b", action="recompute", tier="none", gpu_hit_tokens=0),
    pause_record(pause_id=3, turn=1, t=BEGAN_AT_S + 2.5),
    resume_record(pause_id=3, turn=2, gpu_hit_tokens=128),
]


@pytest.fixture
def pauses(tmp_path: Path) -> Mapping[tuple[str, int], LedgerPause]:
    write_ledger(tmp_path / "ledger.jsonl", LEDGER)
    return LedgerFile(tmp_path / "ledger.jsonl").pauses()


@pytest.fixture
def plugin() -> Replay:
    return replay(RESULTS)


@pytest.fixture
def stock() -> Replay:
    return replay(STOCK_RESULTS)


@pytest.fixture
def rows(
    plugin: Replay, stock: Replay, pauses: Mapping[tuple[str, int], LedgerPause]
) -> list[PauseRow]:
    return pause_rows(SESSIONS, plugin, stock, pauses, block_size=BLOCK)


@pytest.fixture
def ratios() -> dict[str, Ratio]:
    times = {"hold": 0.021, "local_hit": 0.020, "swap": 0.03, "recompute": 0.2}
    samples = [sample(kind, n, ttft_s=t) for kind, t in times.items() for n in range(3)]
    samples += [sample("prefetched", n, turn=1, ttft_s=0.022, text="other") for n in range(3)]
    return {
        "hold": ratio(samples, "hold", "local_hit"),
        "resume": ratio(samples, "swap", "recompute"),
        "prefetch": ratio(samples, "prefetched", "hold"),
    }


def test_only_full_blocks_that_were_known_and_not_found_were_computed_again() -> None:
    assert recomputed_tokens(known_tokens=100, cached_tokens=0, block_size=32) == 96
    assert recomputed_tokens(known_tokens=100, cached_tokens=96, block_size=32) == 0
    assert recomputed_tokens(known_tokens=0, cached_tokens=64, block_size=32) == 0


def test_a_row_joins_the_pause_its_resume_on_both_servers_and_the_ledger(
    rows: list[PauseRow],
) -> None:
    row = next(row for row in rows if (row.session, row.turn) == ("a", 0))
    assert (row.action, row.tier, row.reason, row.num_decisions) == ("swap", "dram", "pressure", 2)
    assert (row.wait_s, row.is_wait_cut) == (6.0, True)
    assert (row.reused_tokens, row.recomputed_tokens) == (96, 0)
    assert (row.reused_stock_tokens, row.recomputed_stock_tokens) == (0, 96)
    assert (row.ttft_s, row.ttft_stock_s) == (0.02, 0.2)


def test_there_is_a_row_per_pause_and_none_for_a_first_turn(rows: list[PauseRow]) -> None:
    assert [(row.session, row.turn) for row in rows] == [("a", 0), ("b", 0), ("a", 1)]


def test_a_pause_that_the_ledger_does_not_know_stays_in_the_table(
    plugin: Replay, stock: Replay
) -> None:
    rows = pause_rows(SESSIONS, plugin, stock, {}, block_size=BLOCK)
    assert len(rows) == 3 and all(row.action is None for row in rows)


def test_a_changed_token_or_prompt_length_is_a_mismatch(plugin: Replay) -> None:
    assert mismatched_turns(plugin, replay(RESULTS)) == []
    changed = RESULTS | {
        ("a", 1): result(prompt_tokens=150, token_ids=(1, 3)),
        ("b", 1): result(prompt_tokens=101),
    }
    assert mismatched_turns(plugin, replay(changed)) == [("a", 1), ("b", 1)]


def test_the_summary_counts_what_the_rows_say(
    rows: list[PauseRow], plugin: Replay, stock: Replay, ratios: dict[str, Ratio]
) -> None:
    summary = summarize(rows, plugin, stock, ratios, PREFETCH)
    assert summary["actions"] == {"hold": 1, "swap": 1, "recompute": 1}
    assert summary["token_mismatches"] == 0 and summary["turns_compared"] == 5
    assert (summary["tokens_recomputed"], summary["tokens_recomputed_stock"]) == (96, 96 + 128 + 96)
    assert (summary["ttft_p50_s"], summary["ttft_p50_stock_s"]) == (0.03, 0.2)
    assert summary["resume_ttft_p50_ratio"] == pytest.approx(0.15)
    assert summary["hold_ttft_p50_ratio"] == pytest.approx(1.05)
    assert summary["prefetch_ttft_p50_ratio"] == pytest.approx(22 / 21, abs=1e-3)
    assert summary["prefetch"]["useful"] == 3
    # In the pool: 0 of 100 known tokens, 0 of 100 and 128 of 150.
    assert summary["resume_local_hit_share"] == pytest.approx(128 / 350, abs=1e-3)


def test_pauses_are_joined_by_the_reply_that_ended_them() -> None:
    """A client that names no session has another name in the ledger."""
    played = replay({("a", 0): result(reply_id="cmpl-1"), ("a", 1): result(reply_id="cmpl-2")})
    ended = LedgerResume(0.0, "swap", "dram", 100, 0, 96, 0, None, request_id="cmpl-2-0123abcd")
    pauses = [
        LedgerPause("inferred-7", 0, (), ended),
        LedgerPause("inferred-7", 1, (), None),
    ]
    assert named_pauses(played, pauses) == {("a", 0): pauses[0]}


def test_mismatches_of_replay_and_ratio_rounds_add_up(
    rows: list[PauseRow], plugin: Replay, ratios: dict[str, Ratio]
) -> None:
    other = replay(RESULTS | {("a", 0): result(text="other")})
    samples = [sample("swap", text="x"), sample("recompute", text="y")]
    with_wrong = ratios | {"resume": ratio(samples, "swap", "recompute")}
    assert summarize(rows, plugin, other, with_wrong, PREFETCH)["token_mismatches"] == 2


def many_rows(row: PauseRow) -> list[PauseRow]:
    """Ten rows per action that differ little, and one each that is long, or fast, or wrong."""
    return [
        *(
            replace(row, session=action, turn=turn, action=action, wait_s=1.0, ttft_s=0.19)
            for action in ("hold", "swap", "recompute")
            for turn in range(10)
        ),
        replace(row, session="long", wait_s=12.0, ttft_s=0.2),
        replace(row, session="fast", action="swap", wait_s=1.0, ttft_s=0.01),
        replace(row, session="wrong", is_same_answer=False, wait_s=1.0, ttft_s=0.2),
    ]


def test_the_telling_rows_are_the_wrong_the_long_and_the_most_changed_of_every_action(
    rows: list[PauseRow],
) -> None:
    shown = telling_rows(many_rows(rows[0]), 12)
    assert len(shown) == 12
    assert {"long", "fast", "wrong", "hold", "swap", "recompute"} == {r.session for r in shown}
    # They stay in the order of the run.
    assert [row.session for row in shown][-3:] == ["long", "fast", "wrong"]


def test_all_rows_are_shown_when_there_are_few(rows: list[PauseRow]) -> None:
    assert telling_rows(rows, 25) == rows


def test_the_report_shows_the_cut_waits_the_ratio_and_the_verdict(
    rows: list[PauseRow], plugin: Replay, stock: Replay, ratios: dict[str, Ratio]
) -> None:
    screen = Console(file=io.StringIO(), width=160)
    summary = summarize(rows, plugin, stock, ratios, PREFETCH)
    print_report(screen, rows, summary, ratios, waits_statement="Waits were cut at 6 s.")
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "6.00*" in text and "Waits were cut at 6 s." in text
    assert "1 hold, 1 swap, 1 recompute" in text
    assert "0.15 = 30 ms" in text and "3 pairs" in text
    assert "3 useful, 1 late" in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_number_is_cut_on_a_narrow_screen(rows: list[PauseRow], width: int) -> None:
    wide = replace(rows[0], prompt_tokens=5000, reused_tokens=4992, recomputed_stock_tokens=4992)
    screen = Console(file=io.StringIO(), width=width)
    screen.print(pause_table([replace(wide, action="recompute"), *rows], 9, width=width))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("4,992") == 2 and "recompute" in text and "6.00*" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_the_json_file_holds_summary_pauses_with_reasons_and_provenance(
    tmp_path: Path,
    rows: list[PauseRow],
    plugin: Replay,
    stock: Replay,
    ratios: dict[str, Ratio],
) -> None:
    path = tmp_path / "demo.json"
    summary = summarize(rows, plugin, stock, ratios, PREFETCH)
    write_json(path, rows=rows, summary=summary, ratios=ratios, provenance={"seed": 0})
    value = json.loads(path.read_text())
    assert value["provenance"] == {"seed": 0}
    assert [pause["reason"] for pause in value["pauses"]] == [
        "pressure",
        "too short",
        "nobody waits for blocks: holding is free",
    ]
    assert value["summary"]["ratios"]["resume"]["pairs"] == 3


def test_a_pause_is_drawn_in_the_colours_of_its_decisions(
    pauses: Mapping[tuple[str, int], LedgerPause],
) -> None:
    segments = pause_segments(0.5, 2.0, pauses["a", 0], BEGAN_AT_S)
    assert [(each.start_s, each.end_s, each.kind) for each in segments] == [
        (0.5, 1.5, "hold"),
        (1.5, 2.0, "swap"),
    ]
    [unknown] = pause_segments(0.5, 2.0, None, BEGAN_AT_S)
    assert unknown.kind is None and None in COLOURS


def test_the_picture_is_drawn_even_from_shell_commands_full_of_dollar_signs(
    tmp_path: Path,
    plugin: Replay,
    pauses: Mapping[tuple[str, int], LedgerPause],
    rows: list[PauseRow],
    ratios: dict[str, Ratio],
) -> None:
    path = tmp_path / "demo.png"
    draw_picture(
        path,
        workload=SESSIONS,
        plugin=plugin,
        pauses=pauses,
        rows=rows,
        ratios=ratios,
        title="a title",
    )
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert path.stat().st_size > 10_000
