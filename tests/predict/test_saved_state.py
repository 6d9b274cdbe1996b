"""What was learned outlives a restart; whatever else the file holds does not."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.predict import HierarchicalWaitPredictor
from agentkv.predict.saved_state import read_state, write_state

CALLS = [("Bash", "make all"), ("Bash", "git log"), ("Read", "a.py"), ("human", None), (None, None)]


@pytest.fixture
def learned() -> HierarchicalWaitPredictor:
    rng = random.Random(0)
    predictor = HierarchicalWaitPredictor()
    for i in range(400):
        tool, command = CALLS[i % len(CALLS)]
        wait_s = rng.lognormvariate(i % len(CALLS), 0.5)
        predictor.observe(tool, command, wait_s, session=i % 7, is_censored=i % 50 == 49)
    return predictor


def test_a_reloaded_predictor_says_the_same(
    learned: HierarchicalWaitPredictor, tmp_path: Path
) -> None:
    file = tmp_path / "waits.json"
    assert write_state(file, learned.dump())
    again = HierarchicalWaitPredictor()
    assert again.load(read_state(file))

    assert len(again.levels) == len(learned.levels)
    for tool, command in CALLS:
        before = learned.estimate(tool, command, age_s=0.5)
        after = again.estimate(tool, command, age_s=0.5)
        assert (after.source, after.num_observed) == (before.source, before.num_observed)
        for name in ("p10_s", "p50_s", "p90_s", "chance_ended", "confidence"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-2)
    assert again.mixing.dump() == learned.mixing.dump() != []
    assert [path.name for path in tmp_path.iterdir()] == ["waits.json"]


def test_saving_again_takes_the_place_of_the_file(
    learned: HierarchicalWaitPredictor, tmp_path: Path
) -> None:
    file = tmp_path / "waits.json"
    assert write_state(file, HierarchicalWaitPredictor().dump())
    assert write_state(file, learned.dump())
    assert json.loads(file.read_text()) == learned.dump()


def first_level(state: dict[str, Any], **changes: object) -> object:
    levels = [state["levels"][0] | changes, *state["levels"][1:]]
    return state | {"levels": levels}


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda state: state | {"version": 2},
    "bins": lambda state: state | {"num_bins": 12},
    "unknown field": lambda state: state | {"more": 1},
    "no levels": lambda state: {"format": state["format"]},
    "kind": lambda state: first_level(state, kind="moon phase"),
    "bin": lambda state: first_level(state, mass={"4000": 1.0}),
    "mass": lambda state: first_level(state, weight=1e6),
    "negative": lambda state: first_level(state, mass={"3": -5.0}),
    "nan": lambda state: first_level(state, weight=float("nan")),
    "not an object": lambda state: [state],
    "nothing": lambda _state: None,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_foreign_and_damaged_state_changes_nothing_and_is_said(
    learned: HierarchicalWaitPredictor, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = learned.dump()
    with caplog.at_level(logging.WARNING):
        assert not learned.load(DAMAGES[how](learned.dump()))
    assert learned.dump() == before
    assert "saved waits are not used" in caplog.text


def test_no_file_is_no_state_and_nothing_to_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_state(tmp_path / "none.json") is None
    assert not caplog.records


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_said_and_skipped(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "waits.json"
    file.write_bytes(content)
    assert read_state(file) is None
    assert "saved waits are not used" in caplog.text


def test_where_nothing_can_be_written_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not write_state(tmp_path / "no" / "waits.json", {})
    (tmp_path / "folder").mkdir()
    assert not write_state(tmp_path / "folder", {})
    assert "is not saved" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
