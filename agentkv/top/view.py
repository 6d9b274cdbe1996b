"""What the user chose to see, and how keys change it. Pure: no terminal, no server.

`Table` is the list of sessions; `Page` is one session's ledger over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from agentkv.top.rows import Row, Sort, matching, ordered

_MAX_FILTER_CHARS = 60


class Wish(Enum):
    """What a key asks of others."""

    NOTHING = auto()
    QUIT = auto()
    OPEN = auto()  # the chosen session's ledger


@dataclass(slots=True)
class View:
    """`chosen` is a session's id: the mark stays on it when the order changes, None before a key
    has moved it. `page_lines`: how many lines a page has, None while the table is shown.
    """

    sort: Sort = Sort.RETURN
    needle: str = ""
    is_typing: bool = False
    chosen: str | None = None
    index: int = 0
    first: int = 0
    height: int = 1
    page_of: str | None = None
    page_lines: int = 0
    page_first: int = 0
    rows: Sequence[Row] = field(default_factory=tuple)

    def show(self, rows: Sequence[Row]) -> None:
        """New rows, in any order."""
        self.rows = ordered(matching(rows, self.needle), self.sort)
        ids = [row.session_id for row in self.rows]
        if self.chosen in ids:
            self.index = ids.index(self.chosen)
        self.index = max(0, min(self.index, len(ids) - 1))

    def scroll_to(self, height: int) -> Sequence[Row]:
        """The rows that a table of this height shows, the chosen one among them."""
        self.height = max(1, height)
        last_first = max(0, len(self.rows) - self.height)
        self.first = min(max(self.first, self.index - self.height + 1), self.index, last_first)
        return self.rows[self.first : self.first + self.height]

    @property
    def row(self) -> Row | None:
        """The chosen one."""
        return self.rows[self.index] if self.rows else None

    def press(self, key: str, rows: Sequence[Row]) -> Wish:
        """`rows`: all there are, for keys that change which are shown."""
        if self.is_typing:
            self._type(key)
        elif self.page_of is not None:
            return self._press_on_page(key)
        elif key == "q":
            return Wish.QUIT
        elif key == "enter":
            return self._open()
        elif key == "s":
            self.sort = self.sort.next()
        elif key == "/":
            self.is_typing = True
        elif key == "escape":
            self.needle = ""
        else:
            self._move(key)
        self.show(rows)
        return Wish.NOTHING

    def _open(self) -> Wish:
        if self.row is None:
            return Wish.NOTHING
        self.page_of, self.page_first, self.page_lines = self.row.session_id, 0, 0
        self.chosen = self.page_of
        return Wish.OPEN

    def _type(self, key: str) -> None:
        if key == "escape":
            self.needle, self.is_typing = "", False
        elif key == "enter":
            self.is_typing = False
        elif key == "backspace":
            self.needle = self.needle[:-1]
        elif len(key) == 1:
            self.needle = (self.needle + key)[:_MAX_FILTER_CHARS]

    def _press_on_page(self, key: str) -> Wish:
        if key == "enter":
            return Wish.OPEN
        if key in ("escape", "q", "backspace"):
            self.page_of = None
        else:
            last = max(0, self.page_lines - self.height)
            self.page_first = max(0, min(last, self._moved(key, self.page_first, self.page_lines)))
        return Wish.NOTHING

    def _move(self, key: str) -> None:
        index = max(0, min(len(self.rows) - 1, self._moved(key, self.index, len(self.rows))))
        if index != self.index and self.rows:
            self.index, self.chosen = index, self.rows[index].session_id

    def _moved(self, key: str, place: int, length: int) -> int:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -length, "g": -length}
        steps |= {"end": length, "G": length, "page up": -self.height, "page down": self.height}
        return place + steps.get(key, 0)
