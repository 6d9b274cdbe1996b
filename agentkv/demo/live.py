"""The screen while a replay runs: what each agent does, and what the plugin decided about its KV.

Why from the ledger: the decision is shown when the engine made it, not when the run is over.
Refreshed a few times a second at most; on a small machine the servers need the cores.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentkv.demo.ledger_file import LedgerFile
from agentkv.demo.report import ACTION_STYLES
from agentkv.demo.workload import PlannedSession, Workload

REFRESHES_PER_SECOND = 3


@dataclass(slots=True)
class _AgentLine:
    session: str = ""
    turn: int = 0
    num_turns: int = 0
    doing: str = "no session left"
    is_paused: bool = False
    since_s: float = field(default_factory=time.perf_counter)


class ReplayBoard:
    """A `ReplayWatcher` that rich's Live can show; `ledger` is None for the stock server."""

    def __init__(
        self, title: str, workload: Workload, *, num_agents: int, ledger: LedgerFile | None
    ) -> None:
        self._ledger = ledger
        self._agents = [_AgentLine() for _ in range(num_agents)]
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        num_turns = sum(len(session.turns) for session in workload.sessions)
        self._turns = self._progress.add_task(f"{title}: turns", total=num_turns)
        self._sessions = self._progress.add_task("sessions", total=len(workload.sessions))

    def turn_started(self, agent: int, session: PlannedSession, turn: int) -> None:
        """See ReplayWatcher."""
        self._set(agent, session, turn, "model runs", is_paused=False)
        if turn > 0:
            self._progress.advance(self._turns)

    def pause_started(self, agent: int, session: PlannedSession, turn: int) -> None:
        """See ReplayWatcher."""
        planned = session.turns[turn]
        what = (planned.command or planned.tool or "(tool not named)").splitlines()[0][:30]
        self._set(agent, session, turn, what, is_paused=True)

    def session_ended(self, agent: int, session: PlannedSession) -> None:
        """See ReplayWatcher."""
        self._agents[agent] = _AgentLine()
        self._progress.advance(self._turns)
        self._progress.advance(self._sessions)

    def view(self) -> RenderableType:
        """The board as it is now."""
        return Group(self._progress, self._table())

    def _set(
        self, agent: int, session: PlannedSession, turn: int, doing: str, *, is_paused: bool
    ) -> None:
        self._agents[agent] = _AgentLine(
            session=session.session_id,
            turn=turn,
            num_turns=len(session.turns),
            doing=doing,
            is_paused=is_paused,
        )

    def _table(self) -> Table:
        decided = self._ledger.pauses() if self._ledger is not None else {}
        table = Table(header_style="bold")
        for name, width in (("session", 10), ("turn", 6), ("now", 32), ("for", 6), ("KV", 10)):
            table.add_column(name, width=width, no_wrap=True)
        now_s = time.perf_counter()
        for line in list(self._agents):
            pause = decided.get((line.session, line.turn)) if line.is_paused else None
            action = pause.action if pause is not None else ""
            table.add_row(
                line.session,
                f"{line.turn + 1}/{line.num_turns}" if line.num_turns else "",
                line.doing.replace("[", r"\["),
                f"{now_s - line.since_s:.1f} s" if line.num_turns else "",
                f"[{ACTION_STYLES.get(action, 'dim')}]{action}[/]" if action else "",
            )
        return table


class BoardView:
    """Lets rich ask for the newest board at every refresh."""

    def __init__(self, view: Callable[[], RenderableType]) -> None:
        self._view = view

    def __rich__(self) -> RenderableType:
        return self._view()
