"""Reading a ledger while it is written."""

import json
from pathlib import Path

from agentkv.demo.ledger_file import LedgerFile

from .builders import pause_record, resume_record, write_ledger


def test_a_pause_gathers_its_decisions_and_its_resume(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    swap = pause_record(kind="redecide", action="swap", reason="under pressure", t=1001.0)
    write_ledger(path, [pause_record(), swap, resume_record(action="swap", tier="dram")])
    pause = LedgerFile(path).pauses()["a", 0]
    assert [each.action for each in pause.decisions] == ["hold", "swap"]
    assert (pause.action, pause.reason) == ("swap", "under pressure")
    assert pause.resume is not None and pause.resume.tier == "dram"


def test_the_reason_is_that_of_the_action_in_force_at_the_resume(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    swap = pause_record(kind="redecide", action="swap", reason="under pressure")
    write_ledger(path, [pause_record(), swap, resume_record(action="hold")])
    pause = LedgerFile(path).pauses()["a", 0]
    assert (pause.action, pause.reason) == ("hold", "nobody waits for blocks: holding is free")


def test_lines_are_read_as_they_are_completed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = LedgerFile(path)
    assert ledger.pauses() == {}
    line = json.dumps(resume_record()) + "\n"
    write_ledger(path, [pause_record()])
    with path.open("a") as file:
        file.write(line[:20])
        file.flush()
        assert ledger.pauses()["a", 0].resume is None
        file.write(line[20:])
    assert ledger.pauses()["a", 0].resume is not None


def test_sessions_of_the_same_name_one_after_the_other_keep_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    again = pause_record(pause_id=2, action="recompute")
    write_ledger(path, [pause_record(), {"kind": "end", "t": 1.0, "session_id": "a"}, again])
    assert [d.action for d in LedgerFile(path).pauses()["a", 0].decisions] == ["recompute"]


def test_a_resume_without_its_pause_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write_ledger(path, [resume_record(pause_id=9)])
    assert LedgerFile(path).pauses() == {}
