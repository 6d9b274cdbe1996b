"""What is known and what was chosen, in one place: looks and keys go in, scenes come out.

Knows no terminal, no server and no clock but the wall's, so all of it can be tried without them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentkv.explain import PauseStory
from agentkv.terminal_text import clean
from agentkv.top.fetch import Look
from agentkv.top.figures import Figures, figures_of
from agentkv.top.history import History
from agentkv.top.page import Page, Printer
from agentkv.top.rows import Row, rows_of
from agentkv.top.screen import Scene, Server
from agentkv.top.view import View, Wish


class Board:
    """Owned by one thread; begins with a first look. `interval_s`: None for one look."""

    def __init__(
        self,
        url: str,
        first: Look,
        printer: Printer,
        *,
        interval_s: float | None = None,
        has_keys: bool = True,
    ) -> None:
        self.view = View()
        self._url, self._interval_s = clean(url), interval_s
        self._printer = printer
        self._has_keys = has_keys
        self._history = History()
        self._page: Page | None = None
        self._figures: Figures
        self._rows: list[Row] = []
        self.note_look(first)

    def note_look(self, look: Look) -> None:
        """The server has answered."""
        self._figures = figures_of(look)
        self._history.add(look.taken_s, self._figures)
        self._rows = rows_of(look.sessions, look.age_s)
        self._told_at_s, self._trouble, self._note = time.time(), "", look.note
        self.view.show(self._rows)

    def note_trouble(self, trouble: str) -> None:
        """It has not: what was known stays on the screen, with that over it."""
        self._trouble = trouble

    def press(self, key: str) -> Wish:
        """A key; `Wish.OPEN` wants the session `view.page_of` asked for."""
        wish = self.view.press(key, self._rows)
        if self.view.page_of is None:
            self._page = None
        elif wish is Wish.OPEN:
            self._page = Page(clean(self.view.page_of), self._printer)
        return wish

    def note_ledger(
        self, session_id: str, session: Mapping[str, Any], stories: Sequence[PauseStory]
    ) -> None:
        """What was asked for is here; it is forgotten if the user has gone on."""
        if self._page is not None and self.view.page_of == session_id:
            self._page.session, self._page.stories = session, stories
            self._page.is_loading = False

    def note_no_ledger(self, session_id: str, trouble: str) -> None:
        """What was asked for is not to be had."""
        if self._page is not None and self.view.page_of == session_id:
            self._page.trouble, self._page.is_loading = clean(trouble), False

    def scene(self) -> Scene:
        """As it is now."""
        return Scene(
            server=Server(self._url, self._told_at_s, self._interval_s, self._trouble, self._note),
            figures=self._figures,
            history=self._history,
            rows=self._rows,
            view=self.view,
            page=self._page,
            has_keys=self._has_keys,
        )
