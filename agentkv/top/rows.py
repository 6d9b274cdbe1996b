"""The sessions as rows: what is shown of each, in which order, and which pass a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agentkv.terminal_text import clean

NOWHERE = "-"
_LATE_S = float("inf")


class Sort(str, Enum):
    """What comes first: the next to return, the longest waits, the largest contexts, or names."""

    RETURN = "return"
    WAITED = "waited"
    CONTEXT = "context"
    NAME = "name"

    def next(self) -> Sort:
        """The one after it, in a circle."""
        order = list(Sort)
        return order[(order.index(self) + 1) % len(order)]


@dataclass(frozen=True, slots=True)
class Row:
    """One session. Texts are clean but for `session_id`, which is what the server calls it.

    `waited_s`: how long its pause has lasted; `returns_in_s`: the predicted rest of it, 0 where it
    is overdue. `kept_in`: where its KV lies as far as the list tells; NOWHERE is recompute.
    """

    session_id: str
    label: str
    state: str
    tool: str
    waited_s: float | None
    returns_in_s: float | None
    is_tool_done: bool
    action: str
    reason: str
    context_tokens: int
    kept_in: str
    is_given_up: bool

    @property
    def is_paused(self) -> bool:
        return self.state == "paused"

    @property
    def is_dropped(self) -> bool:
        """Given up, to be computed again."""
        return self.is_given_up and self.action == "recompute"

    @property
    def is_swapped(self) -> bool:
        """Given up in the pool, to be loaded."""
        return self.is_given_up and not self.is_dropped


def rows_of(sessions: Iterable[Mapping[str, Any]], age_s: float) -> list[Row]:
    """`age_s`: how long ago the engine told them; pauses have gone on since."""
    return [_row(each, age_s) for each in sessions]


def ordered(rows: Iterable[Row], sort: Sort) -> list[Row]:
    return sorted(rows, key=_KEYS[sort])


def matching(rows: Iterable[Row], needle: str) -> list[Row]:
    """Those that have all words of it in their id, state, tool, action or place."""
    words = needle.casefold().split()
    if not words:
        return list(rows)
    return [row for row in rows if all(word in _searched(row) for word in words)]


def _searched(row: Row) -> str:
    return " ".join((row.label, row.state, row.tool, row.action, row.kept_in)).casefold()


def _row(session: Mapping[str, Any], age_s: float) -> Row:
    pause = session.get("pause")
    pause = pause if isinstance(pause, dict) else {}
    state, action = _text(session.get("state")), _text(pause.get("action"))
    waited_s, returns_in_s = _seconds(pause.get("since_s")), _seconds(pause.get("returns_in_s"))
    is_given_up = bool(pause.get("is_given_up"))
    return Row(
        session_id=str(session.get("session_id")),
        label=clean(str(session.get("session_id"))),
        state=state,
        tool=_text(pause.get("tool")),
        waited_s=None if waited_s is None else waited_s + age_s,
        returns_in_s=None if returns_in_s is None else max(0.0, returns_in_s - age_s),
        is_tool_done=bool(pause.get("is_tool_done")),
        action=action,
        reason=_text(pause.get("reason")),
        context_tokens=int(_seconds(session.get("context_tokens")) or 0),
        kept_in=_kept_in(state, action, is_given_up, _text(pause.get("parked_in"))),
        is_given_up=is_given_up,
    )


def _kept_in(state: str, action: str, is_given_up: bool, parked_in: str) -> str:
    """The list does not say what each tier has; one session, asked for alone, does."""
    if state != "paused":
        return "pool" if state == "running" else ""
    places = [] if is_given_up else ["pool"]
    places += ["dram"] if is_given_up and action != "recompute" and not parked_in else []
    places += [parked_in] if parked_in else []
    return "+".join(places) or NOWHERE


def _by_return(row: Row) -> tuple[Any, ...]:
    """Paused ones whose tool is done or is soonest back, then arrived ones, then running ones."""
    order = {"paused": 0, "resuming": 1, "running": 2}.get(row.state, 3)
    rest_s = _LATE_S if row.returns_in_s is None else row.returns_in_s
    return (order, not row.is_tool_done, rest_s, -(row.waited_s or 0.0), row.label)


_KEYS: Mapping[Sort, Callable[[Row], tuple[Any, ...]]] = {
    Sort.RETURN: _by_return,
    Sort.WAITED: lambda row: (-(row.waited_s or 0.0), row.label),
    Sort.CONTEXT: lambda row: (-row.context_tokens, row.label),
    Sort.NAME: lambda row: (row.label,),
}


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def _seconds(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and value == value else None
