"""`agentkv bench predict` on small traces made here: what counts, is split, is refused."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from agentkv.bench.predict_forecasts import RIVALS, EmpiricalForecaster, OurForecaster, teach
from agentkv.bench.predict_pauses import Call, Pause, read_pauses, split_by_group
from agentkv.bench.predict_run import run_predict
from agentkv.cli.main import build_app
from agentkv.errors import ConfigError
from agentkv.predict.histogram import LOG_EDGES
from agentkv.predict.place import HUMAN, Place, traced_place

CALLS = {
    "python -m pytest": ("pytest/test", 6.0),
    "git log": ("git local", 0.1),
    "pip install": ("pkg install", 25.0),
    "ls": ("file view/edit", 0.03),
}


def rows(num_sessions: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Sessions of twelve turns, some twice as slow as others, each in one of eight repositories."""
    rng = random.Random(seed)
    for session in range(num_sessions):
        pace = rng.choice((0.5, 2.0))
        for turn in range(12):
            head = rng.choice(list(CALLS))
            cls, typical_s = CALLS[head]
            tool = {"name": "Bash", "cls": cls, "head": head, "sig": f"{session}-{rng.random()}"}
            yield {
                "v": 1,
                "session_id": f"s{session}",
                "traj": "main",
                "turn": turn,
                "repo": f"owner/repo-{session % 8}",
                "stop": "tool_use",
                "tools": [tool],
                "wait_s": typical_s * pace * rng.lognormvariate(0, 0.3),
            }


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def shuffled(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same waits, each at another pause."""
    waits_s = [line["wait_s"] for line in lines]
    random.Random(1).shuffle(waits_s)
    return [line | {"wait_s": wait_s} for line, wait_s in zip(lines, waits_s, strict=True)]


def call(*args: str | Path) -> Any:
    words = ["bench", "predict", *map(str, args)]
    return CliRunner().invoke(build_app(), words, env={"COLUMNS": "80"})


def test_the_command_prints_a_table_and_writes_the_figures(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.jsonl.gz", list(rows(64)))
    done = call("--fit", trace, "--trace", trace, "--seed", 3, "--json", tmp_path / "r.json")

    assert done.exit_code == 0, (done.output, done.exception)
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "halved by repository" in done.stdout and "seed 3" in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["r2_log_wait"] > found["r2_log_wait_no_history"] > 0.7
    assert found["auc_gt_10s"] > 0.9
    assert 0.7 < found["coverage_80"] < 0.9 < found["coverage_95"] <= 1
    assert set(found["coverage_by_age_s"]) == {"0", "1", "5", "30"}
    scores = found["log_score"]
    assert set(scores) == {"agentkv", "agentkv_no_history", *RIVALS}
    assert all(scores["agentkv"] > scores[name] for name in RIVALS)
    assert found["num_pauses"] == found["num_pauses_fit"] == 64 * 12


def test_of_shuffled_waits_nothing_is_known(tmp_path: Path) -> None:
    """The negative control: no score can come from how the bench itself is built."""
    trace = written(tmp_path / "t.jsonl", shuffled(list(rows(200))))
    found = run_predict([trace], [trace], seed=0)

    for scores in (found.ours, found.no_history):
        assert scores.r2_log_wait == pytest.approx(0.0, abs=0.1)
        assert scores.auc_gt_10s == pytest.approx(0.5, abs=0.07)
        assert scores.coverage[0.0].within_80 == pytest.approx(0.8, abs=0.05)


def test_no_repository_is_on_both_sides(tmp_path: Path) -> None:
    pauses = read_pauses([written(tmp_path / "t.jsonl", list(rows(32)))])
    splits = [split_by_group(pauses, seed) for seed in range(5)]

    for fit, judged, sizes in splits:
        assert not {p.group for p in fit} & {p.group for p in judged}
        assert len(fit) + len(judged) == len(pauses)
        assert sizes == (4, 4)
    assert len({frozenset(p.group for p in fit) for fit, _, _ in splits}) > 1
    assert split_by_group(pauses, 0) == splits[0]


def test_repositories_of_the_judged_file_are_left_out_of_the_other(tmp_path: Path) -> None:
    both = list(rows(32))
    fit = written(tmp_path / "fit.jsonl", both)
    trace = written(tmp_path / "t.jsonl", [r for r in both if r["repo"].endswith(("-0", "-1"))])
    found = run_predict([fit], [trace], seed=0)

    assert found.num_fit == 24 * 12
    assert "2 repositories of --trace left out" in found.split


def test_nothing_of_a_session_is_its_own_without_history(tmp_path: Path) -> None:
    """Every session has a length of its own, which its first wait would give away."""
    rng = random.Random(5)
    lines = []
    for session in range(80):
        wait_s = 10 ** rng.uniform(-1, 2)
        base = {"session_id": f"s{session}", "traj": "main", "stop": "tool_use"}
        for turn in range(8):
            tool = {"name": "Bash", "cls": "c", "head": "h", "sig": f"{session}/{turn}"}
            lines.append(base | {"turn": turn, "tools": [tool], "wait_s": wait_s})
    trace = written(tmp_path / "t.jsonl", lines)
    found = run_predict([trace], [trace], seed=0)

    assert found.ours.r2_log_wait > 0.5
    assert found.no_history.r2_log_wait < 0.1


def test_rows_without_tools_wait_for_a_human_or_an_unknown_tool(tmp_path: Path) -> None:
    base = {"session_id": "s", "traj": "main", "tools": None}
    lines = [
        base | {"stop": "end_turn", "gap_s": 60.0},
        base | {"stop": "tool_use", "wait_s": -0.5},
        base | {"stop": "unknown", "wait_s": None},
    ]
    pauses = read_pauses([written(tmp_path / "t.jsonl", lines)])

    assert [pause.calls[0].place for pause in pauses] == [Place(HUMAN), Place()]
    assert [pause.wait_s for pause in pauses] == [60.0, 0.0]


def test_of_several_calls_the_slowest_one_stands_for_the_pause() -> None:
    slow = Call(traced_place("Bash", "pytest/test", "pytest", "1"), None)
    quick = Call(traced_place("Read", None, None, "2"), None)
    ours = OurForecaster()
    teach(ours, [Pause("a", "g", (slow,), 40.0), Pause("a", "g", (quick,), 0.02)] * 20)
    alone = ours.forecast(Pause("b", "g", (slow,), 0.0))

    for calls in ((slow, quick), (quick, slow)):
        assert np.array_equal(ours.forecast(Pause("b", "g", calls, 0.0)), alone)


def test_the_timeout_of_a_call_bounds_its_forecast() -> None:
    call_with = Call(traced_place("Bash", "pytest/test", "pytest", "1"), 30.0)
    ours = OurForecaster()
    teach(ours, [Pause("a", "g", (call_with,), 200.0)] * 20)
    cdf = ours.forecast(Pause("b", "g", (call_with,), 0.0))
    assert np.interp(np.log(50.0), LOG_EDGES, cdf) == pytest.approx(1.0)


def test_continuum_takes_2_s_until_100_waits_were_seen() -> None:
    rival = RIVALS["tool_cdf"]()
    assert isinstance(rival, EmpiricalForecaster)
    pause = Pause("a", "g", (Call(traced_place("Bash", None, None, None), None),), 50.0)
    teach(rival, [pause] * 99)
    assert np.interp(np.log(3.0), LOG_EDGES, rival.forecast(pause)) == 1.0
    teach(rival, [pause])
    assert np.interp(np.log(30.0), LOG_EDGES, rival.forecast(pause)) == 0.0


def test_what_cannot_be_judged_is_refused_with_the_reason(tmp_path: Path) -> None:
    one = written(tmp_path / "one.jsonl", [r for r in rows(16) if r["repo"].endswith("-0")])
    other = written(tmp_path / "other.jsonl", list(rows(8)))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"session_id": "a"}\n{"session_id": 3}\n')
    empty = written(tmp_path / "empty.jsonl", [])
    for fit, trace, reason in [
        ([one], [one], "one repository only"),
        ([one, other], [other], "name the same files"),
        ([bad], [one], "line 2: session_id"),
        ([tmp_path / "no.jsonl"], [one], "cannot be read"),
        ([one], [empty], "both need pauses"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            run_predict(fit, trace, seed=0)


def test_a_folder_that_is_missing_is_said_before_anything_is_read(tmp_path: Path) -> None:
    done = call("--fit", "x", "--trace", "x", "--json", tmp_path / "no" / "r.json")
    assert isinstance(done.exception, ConfigError)
    assert "there is no folder" in str(done.exception)
