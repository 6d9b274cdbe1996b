"""The screen while a replay runs."""

import io
from pathlib import Path

from rich.console import Console

from agentkv.demo.ledger_file import LedgerFile
from agentkv.demo.live import BoardView, ReplayBoard

from .builders import pause_record, planned, session, workload, write_ledger

PLAYED = workload(session("a", planned(command="pytest -q [slow]"), planned()))


def shown(board: ReplayBoard) -> str:
    screen = Console(file=io.StringIO(), width=120)
    screen.print(BoardView(board.view))
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_pause_shows_its_tool_and_what_the_ledger_says_of_it(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    write_ledger(ledger, [pause_record(session_id="a", turn=0, action="swap")])
    board = ReplayBoard("agentkv", PLAYED, num_agents=2, ledger=LedgerFile(ledger))
    board.turn_started(0, PLAYED.sessions[0], 0)
    assert "model runs" in shown(board) and "swap" not in shown(board)
    board.pause_started(0, PLAYED.sessions[0], 0)
    assert "pytest -q [slow]" in shown(board) and "swap" in shown(board)


def test_turns_and_sessions_are_counted_to_the_end() -> None:
    board = ReplayBoard("stock vLLM", PLAYED, num_agents=1, ledger=None)
    board.turn_started(0, PLAYED.sessions[0], 0)
    board.pause_started(0, PLAYED.sessions[0], 0)
    assert "0/2" in shown(board)
    board.turn_started(0, PLAYED.sessions[0], 1)
    assert "1/2" in shown(board)
    board.session_ended(0, PLAYED.sessions[0])
    assert "2/2" in shown(board) and "1/1" in shown(board)
    assert "no session left" in shown(board)
