"""The sessions on the screen: a line each, the chosen one marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from agentkv.top.marks import ACTION_STYLES, WIDE, count, fit, fit_right, seconds
from agentkv.top.rows import Row

_STATE_STYLES = {"running": "bold", "resuming": "cyan"}
_MIN_NAME_WIDTH, _MAX_NAME_WIDTH = 12, 40  # The latter where the reason has its room, too.


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    width: int
    cell: Callable[[Row], str]
    is_right: bool = False
    style: Callable[[Row], str] = lambda row: ""


def _returns(row: Row) -> str:
    if row.is_tool_done:
        return "tool done"
    if row.returns_in_s is None:
        return ""
    return f"in {seconds(row.returns_in_s)}" if row.returns_in_s > 0 else "overdue"


def _context(row: Row) -> str:
    return count(row.context_tokens) if row.context_tokens else ""


_COLUMNS = (
    _Column("state", 8, lambda row: row.state, style=lambda row: _STATE_STYLES.get(row.state, "")),
    _Column("tool", 10, lambda row: row.tool),
    _Column("waits", 6, lambda row: seconds(row.waited_s), is_right=True),
    _Column("returns", 9, _returns, is_right=True),
    _Column("action", 9, lambda row: row.action, style=lambda r: ACTION_STYLES.get(r.action, "")),
    _Column("context", 7, _context, is_right=True),
    _Column("KV in", 8, lambda row: row.kept_in),
)


def header_line(width: int) -> Text:
    """The names of the columns."""
    name_width, reason_width = _widths(width)
    cells = [fit("session", name_width)]
    cells += [(fit_right if c.is_right else fit)(c.name, c.width) for c in _COLUMNS]
    cells += [fit("why", reason_width)] if reason_width else []
    return Text(fit(" ".join(cells), width), style="reverse")


def row_line(row: Row, width: int, *, is_chosen: bool) -> Text:
    """One session."""
    name_width, reason_width = _widths(width)
    text = Text(fit(row.label, name_width))
    for column in _COLUMNS:
        cell = (fit_right if column.is_right else fit)(column.cell(row), column.width)
        text.append(" ")
        text.append(cell, column.style(row))
    if reason_width:
        text.append(" " + fit(row.reason, reason_width), "dim")
    if is_chosen:
        text.stylize("on blue")
    return text


def reason_line(row: Row | None, width: int) -> Text:
    """Why the chosen one is where it is; for screens that have no room for it in every line."""
    if row is None:
        return Text("")
    said = row.reason or ("its turn runs" if row.state == "running" else "nothing was decided")
    return Text(fit(f"{row.label}: {said}", width), style="dim")


def table_lines(rows: Sequence[Row], chosen: Row | None, width: int) -> list[Text]:
    """The rows that are seen."""
    return [row_line(row, width, is_chosen=row is chosen) for row in rows]


def _widths(width: int) -> tuple[int, int]:
    """Of the name, and of the reason: 0 where there is no room for it."""
    left = width - sum(column.width + 1 for column in _COLUMNS)
    if width < WIDE:
        return max(_MIN_NAME_WIDTH, left), 0
    name_width = min(_MAX_NAME_WIDTH, max(_MIN_NAME_WIDTH, left // 4))
    return name_width, left - name_width - 1
