"""Each kind of trace, and what a wrong row says."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import ConfigError
from agentkv.sim.readers import read_traces
from agentkv.sim.trace import fill_waits, guess_shared


def _write(path: Path, rows: list[Any]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _v1(turn: int, **fields: Any) -> dict[str, Any]:
    row = {"session_id": "a", "src": "x", "traj": "main", "turn": turn, "output_tokens": 10}
    return row | {"input_tokens": 100 * (turn + 1)} | fields


V1_ROWS = [
    _v1(0, wait_s=1.5, tools=[{"name": "Bash", "head": "pytest -q", "timeout_s": 60.0}]),
    _v1(0, traj="side", input_tokens=5),
    _v1(1, prefix_tokens=110, prefix_turn=0, wait_s=None, gap_s=2.5, wait_kind="human"),
    _v1(2, prefix_tokens=150, prefix_row=2),
]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_agentkv_trace_v1(tmp_path: Path, name: str) -> None:
    (session,) = read_traces([_write(tmp_path / name, V1_ROWS)])
    first, second, third = session.turns
    assert (first.tool, first.command, first.timeout_s) == ("Bash", "pytest -q", 60.0)
    assert (first.prefix_turn, first.wait_s) == (-1, 1.5)
    assert (second.prefix_turn, second.prefix_tokens, second.wait_s) == (0, 110, 2.5)
    assert second.tool == "human"
    assert (third.prefix_turn, third.wait_s) == (1, None)  # row 2 of the file is turn 1


def test_missing_waits_become_the_median_and_long_ones_are_cut(tmp_path: Path) -> None:
    rows = [_v1(i, prefix_turn=i - 1, wait_s=wait) for i, wait in enumerate([1.0, 9.0, None, 5.0])]
    sessions = read_traces([_write(tmp_path / "t.jsonl", rows)])
    (session,) = fill_waits(sessions, cap_s=6.0)
    assert [turn.wait_s for turn in session.turns] == [1.0, 6.0, 6.0, 5.0]


def test_a_shared_prefix_is_guessed_only_where_the_source_says_nothing(tmp_path: Path) -> None:
    rows = [
        _v1(0, session_id="a", input_tokens=1000),
        _v1(0, session_id="b", input_tokens=2000),
        _v1(0, session_id="c", input_tokens=3000, src="y", shared_prefix_tokens=700),
    ]
    sessions = guess_shared(read_traces([_write(tmp_path / "t.jsonl", rows)]))
    assert [session.shared_tokens for session in sessions] == [950, 950, 700]


def test_mooncake_requests_are_chained_by_their_blocks(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [0, 9]},
        {"timestamp": 4000, "input_length": 1700, "output_length": 5, "hash_ids": [0, 1, 3, 4]},
    ]
    long, short = read_traces([_write(tmp_path / "m.jsonl", rows)])
    assert [turn.prompt_tokens for turn in long.turns] == [1100, 1700]
    assert long.turns[1].prefix_turn == 0
    assert long.turns[1].prefix_tokens == 1024
    assert long.turns[0].wait_s == 4.0
    assert (len(short.turns), short.shared_tokens) == (1, 512)


def test_dynamo_requests_name_their_session_and_delay(tmp_path: Path) -> None:
    row = {"input_length": 600, "output_length": 5, "hash_ids": [0, 1], "session_id": "s"}
    rows = [row, row | {"delay": 2500.0}]
    (session,) = read_traces([_write(tmp_path / "d.jsonl", rows)])
    assert session.name == "s"
    assert session.turns[0].wait_s == 2.5


def test_kv_cache_tester_gaps_lose_the_hidden_request(tmp_path: Path) -> None:
    requests = [
        {"type": "n", "in": 130, "out": 7, "hash_ids": [1, 2, 3], "api_time": 2.0},
        {
            **{"type": "n", "in": 200, "out": 7, "hash_ids": [1, 2, 4, 5]},
            **{"api_time": 3.0, "think_time": 9.0},
        },
        {"type": "sub", "requests": []},
        {
            **{"type": "s", "in": 250, "out": 7, "hash_ids": [1, 2, 4, 6]},
            **{"api_time": 8.0, "think_time": 4.0},
        },
    ]
    file = {"id": "f", "block_size": 64, "requests": requests, "tool_tokens": 60}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(file))
    (session,) = read_traces([path])
    assert [turn.wait_s for turn in session.turns] == [6.0, 1.0, None]
    assert [turn.prefix_tokens for turn in session.turns] == [0, 128, 192]
    assert session.shared_tokens == 60


BROKEN = [
    ("{", "Invalid JSON"),
    ('{"session_id": "a"}', "input_tokens"),
    ('{"session_id": "a", "turn": 0, "input_tokens": -4, "output_tokens": 1}', "input_tokens"),
    (
        '{"session_id":"a","turn":0,"input_tokens":9,"output_tokens":1,"prefix_tokens":10}',
        "more than input_tokens",
    ),
]


@pytest.mark.parametrize(("line", "problem"), BROKEN)
def test_a_wrong_row_names_file_line_and_problem(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(_v1(0)) + "\n\n" + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_traces([path])
    assert f"{path}, line 3" in str(caught.value)
    assert problem in str(caught.value)


def test_a_wrong_hash_row_is_named_too(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.jsonl", [{"input_length": 5, "output_length": 1, "hash_ids": []}])
    with pytest.raises(ConfigError, match=r"line 1: hash_ids"):
        read_traces([path])


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("no.jsonl", None, "cannot be read"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08", "cannot be read"),
        ("empty.jsonl", b"\n", "no rows"),
        ("list.json", b"[]", "kv-cache-tester"),
        ("bad.json", b'{"id":"x","block_size":64,"requests":[{"in":0,"out":1}]}', "request 0: in"),
    ],
)
def test_a_wrong_file_is_named(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_traces([path])
    assert name in str(caught.value)
