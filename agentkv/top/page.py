"""One session's ledger on the screen, as `agentkv explain` prints it, the newest pause first."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from agentkv.explain import PauseStory

Printer = Callable[[str, Sequence[PauseStory], Console], None]
"""Prints stories of a session, as `agentkv explain` does."""


@dataclass(slots=True)
class Page:
    """`label`: the session's clean name. `session`: how it is now. `trouble`: why there is none."""

    label: str
    printer: Printer
    session: Mapping[str, Any] = field(default_factory=dict)
    stories: Sequence[PauseStory] = ()
    trouble: str = ""
    is_loading: bool = True
    _lines: list[Text] = field(default_factory=list)
    _width: int = 0

    def lines(self, width: int) -> list[Text]:
        """All of it. Printed once for a width: it is long, and does not change."""
        if self.is_loading:
            return [Text(f"{self.label}: asking the server …")]
        if self.trouble:
            return [Text(line, style="red") for line in textwrap.wrap(self.trouble, width)]
        if self._width != width:
            self._lines, self._width = self._printed(width), width
        return self._lines

    def _printed(self, width: int) -> list[Text]:
        out = io.StringIO()
        # Without markup and emoji codes: what users named is shown as it is.
        console = Console(
            file=out,
            width=width,
            force_terminal=True,
            color_system="standard",
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )
        self.printer(self.label, list(reversed(self.stories)), console)
        printed = [Text.from_ansi(line) for line in out.getvalue().splitlines()]
        return [*_now_lines(self.session, width), *printed]


def _now_lines(session: Mapping[str, Any], width: int) -> list[Text]:
    """What the list does not tell: where the KV lies, in tokens."""
    kv_tokens = session.get("kv_tokens")
    if not isinstance(kv_tokens, dict):
        return []
    parts = [f"{tokens:,} tokens in {tier}" for tier, tokens in kv_tokens.items() if tokens]
    said = f"Now {session.get('state')}; KV of {', '.join(parts) or 'no token anywhere'}"
    return [Text(said, style="bold"), Text("")]
