"""The ledger keeps what was decided, in memory and in a file, and outlives a broken disk."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

from agentkv.clock import ManualClock
from agentkv.ledger import Ledger


def test_the_ring_keeps_the_newest_records() -> None:
    clock = ManualClock(5.0)
    ledger = Ledger(clock, ring_size=2)
    for pause_id in range(3):
        clock.advance(1)
        ledger.record("pause", pause_id=pause_id)
    assert ledger.records() == [
        {"kind": "pause", "t": 7.0, "pause_id": 1},
        {"kind": "pause", "t": 8.0, "pause_id": 2},
    ]


def test_the_file_has_one_json_object_a_line_as_soon_as_it_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(ManualClock(), path=path)
    ledger.record(
        "pause", tool=None, break_even_s=math.inf, costs_s={"hold": math.nan, "swap": 1.0}
    )
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "kind": "pause",
        "t": 0.0,
        "tool": None,
        "break_even_s": None,
        "costs_s": {"hold": None, "swap": 1.0},
    }
    ledger.close()
    again = Ledger(ManualClock(), path=path)
    again.record("end")
    again.close()
    assert len(path.read_text().splitlines()) == 2


def test_a_file_that_cannot_be_opened_is_reported_once_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ledger = Ledger(ManualClock(), path=tmp_path / "missing" / "ledger.jsonl")
        ledger.record("pause")
        ledger.record("pause")
    assert len(caplog.records) == 1 and "is off" in caplog.text
    assert len(ledger.records()) == 2


def test_a_full_disk_turns_the_file_off(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(ManualClock(), path=Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        ledger.record("pause")
        ledger.record("pause")
    assert len(caplog.records) == 1
    assert len(ledger.records()) == 2


def test_a_sessions_records_are_found_without_other_tenants_and_sessions() -> None:
    ledger = Ledger(ManualClock())
    ledger.record("pause", scope="", session_id="a", pause_id=1)
    ledger.record("pause", scope="other", session_id="a", pause_id=2)
    ledger.record("pause", scope="", session_id="b", pause_id=3)
    ledger.record("park", session_id="a", pause_id=1)
    ledger.record("park", session_id="a", pause_id=2)
    ledger.record("resume", scope="", session_id="a", pause_id=1)
    ledger.record("resume", scope="third", session_id="a", pause_id=1)
    ledger.record("end", session_id="a")

    def found(scope: str, name: str, limit: int = 9) -> list[tuple[str, int]]:
        records = ledger.of_session(scope, name, limit=limit)
        return [(record["kind"], record["pause_id"]) for record in records]

    assert found("", "a") == [("pause", 1), ("park", 1), ("resume", 1)]
    assert found("other", "a") == [("pause", 2), ("park", 2)]
    assert found("", "a", limit=2) == [("park", 1), ("resume", 1)]
    assert found("nobody", "a") == found("", "c") == []
