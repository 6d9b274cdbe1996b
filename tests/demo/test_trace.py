"""Trace files: what is read, how counts are scaled, which prefixes are kept, what is said."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.demo.text import FillText
from agentkv.demo.trace import read_trace, trace_workload
from agentkv.demo.workload import PromptCounter, Workload
from agentkv.errors import ConfigError


def row(session_id: str, turn: int, input_tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "src": "test",
        "session_id": session_id,
        "traj": "main",
        "turn": turn,
        "input_tokens": input_tokens,
        "prefix_tokens": 0,
        "output_tokens": 100,
        "wait_s": 0.5,
        **fields,
    }


def appended(session_id: str, *, shared: int = 0, turns: int = 4) -> list[dict[str, Any]]:
    """A session that grows from 10,000 tokens by 1,100 a turn (100 of them answer)."""
    rows = [row(session_id, 0, 10_000, shared_prefix_tokens=shared)]
    for turn in range(1, turns):
        before = rows[-1]["input_tokens"]
        rows.append(
            row(
                session_id,
                turn,
                before + 1100,
                prefix_tokens=before + 100,
                prefix_turn=turn - 1,
                new_input_tokens=1000,
            )
        )
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(each) + "\n" for each in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture
def plan(tmp_path: Path, counter: PromptCounter, fill: FillText) -> Any:
    def build(rows: list[dict[str, Any]], **fields: Any) -> Workload:
        options = {"seed": 0, "num_sessions": 4, "max_context_tokens": 1500, "max_turns": 8}
        path = write(tmp_path / "trace.jsonl.gz", rows)
        return trace_workload(path, counter, fill, **{**options, **fields})

    return build


def test_plain_and_packed_files_read_the_same(tmp_path: Path) -> None:
    rows = appended("a") + appended("b")
    plain = read_trace(write(tmp_path / "t.jsonl", rows))
    assert plain == read_trace(write(tmp_path / "t.jsonl.gz", rows))
    assert {name: len(each) for name, each in plain.items()} == {"a": 4, "b": 4}


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    rows = [*appended("a"), {"session_id": "a", "turn": "x"}]
    with pytest.raises(ConfigError, match=r"line 5: turn: .*agentkv-trace-v1"):
        read_trace(write(tmp_path / "t.jsonl", rows))


def test_a_file_that_is_not_there_or_not_packed_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"plain")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "bad.jsonl.gz")


def test_token_counts_are_scaled_by_one_stated_factor(plan: Any) -> None:
    made = plan(appended("a"))
    assert made.notes["token_scale"] == pytest.approx(1404 / 13_300)
    assert "x 0.1056" in made.statement() and "13,300 -> 1,404" in made.statement()
    sizes = [turn.prompt_tokens for turn in made.sessions[0].turns]
    assert sizes[0] == pytest.approx(1056, abs=12)
    assert sizes[1] - sizes[0] == pytest.approx(116, abs=15)
    assert sizes[-1] <= 1500


def test_waits_are_not_scaled(plan: Any) -> None:
    rows = appended("a")
    rows[1]["wait_s"] = 300.0
    turns = plan(rows).sessions[0].turns
    assert [turn.wait_s for turn in turns] == [0.5, 300.0, 0.5, 0.5]


def test_appended_prompts_stay_prefixes(plan: Any, counter: PromptCounter) -> None:
    for turn, after in zip(
        plan(appended("a")).sessions[0].turns,
        plan(appended("a")).sessions[0].turns[1:],
        strict=False,
    ):
        ids = counter.ids(turn.messages)
        assert counter.ids(after.messages)[: len(ids)] == ids
        assert after.known_tokens == turn.prompt_tokens


def test_sessions_share_the_shared_prefix_and_nothing_else(
    plan: Any, counter: PromptCounter
) -> None:
    made = plan(appended("a", shared=5000) + appended("b", shared=5000))
    one, other = (each.turns[0] for each in made.sessions)
    common = counter.known(one.messages, [other.messages])
    assert common == pytest.approx(5000 * made.notes["token_scale"], abs=12)


def test_a_compacted_prompt_keeps_only_its_share_of_the_prefix(plan: Any) -> None:
    rows = appended("a")
    rows[3] |= {"input_tokens": 4000, "prefix_tokens": 3000, "new_input_tokens": 1000}
    before, compacted = plan(rows).sessions[0].turns[2:]
    expected = before.prompt_tokens * 3000 / rows[2]["input_tokens"]
    assert compacted.known_tokens == pytest.approx(expected, abs=8)
    assert compacted.prompt_tokens < before.prompt_tokens


def test_sub_agent_turns_are_left_out_and_the_row_number_still_fits(plan: Any) -> None:
    rows = appended("a")
    for each in rows[1:]:
        del each["prefix_turn"]
    side = row("a", 0, 500, traj="side-1", parent_traj="main", parent_turn=0)
    mixed = [rows[0], side, *rows[1:]]
    for number, each in ((2, rows[1]), (3, rows[2]), (4, rows[3])):
        each["prefix_row"] = 0 if number == 2 else number - 1
    made = plan(mixed)
    assert [turn.known_tokens > 0 for turn in made.sessions[0].turns] == [False, True, True, True]
    assert made.notes["sub_agent_turns_left_out"] == 1
    assert "1 turns of sub-agents left out" in made.statement()


def test_tools_and_timeouts_reach_the_tags(plan: Any) -> None:
    rows = appended("a")
    rows[0]["tools"] = [
        {"name": "Bash", "head": "pytest -q", "cls": "pytest/test", "timeout_s": 120, "dur_s": 9.0}
    ]
    rows[1]["tools"] = None
    first, second, *_ = plan(rows).sessions[0].turns
    assert first.tags(is_last=False) == {"tool": "Bash", "command": "pytest -q", "timeout_s": 120}
    assert second.tags(is_last=False) == {}


def test_missing_waits_are_counted(plan: Any) -> None:
    rows = appended("a")
    del rows[1]["wait_s"]
    made = plan(rows)
    assert made.notes["waits_missing_taken_as_zero"] == 1
    assert made.sessions[0].turns[1].wait_s == 0.0


def test_the_choice_of_sessions_follows_the_seed(plan: Any) -> None:
    rows = [each for name in "abcdefgh" for each in appended(name)]
    names = [tuple(s.session_id for s in plan(rows, seed=seed).sessions) for seed in (0, 0, 1)]
    assert names[0] == names[1] != names[2]


def test_a_trace_of_single_turns_is_refused(plan: Any) -> None:
    with pytest.raises(ConfigError, match="3 turns or more"):
        plan([row("a", 0, 100)])
