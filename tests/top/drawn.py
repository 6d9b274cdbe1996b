"""What a scene looks like, as plain lines or as the terminal gets it."""

from __future__ import annotations

import io

from rich.console import Console

from agentkv.top.screen import Lines


def plain(lines: Lines, width: int) -> list[str]:
    """Without colours."""
    return _drawn(lines, width, is_terminal=False).split("\n")


def raw(lines: Lines, width: int) -> str:
    """With the escape sequences of colours, and whatever else there is."""
    return _drawn(lines, width, is_terminal=True)


def _drawn(lines: Lines, width: int, *, is_terminal: bool) -> str:
    out = io.StringIO()
    Console(
        file=out,
        width=width,
        force_terminal=is_terminal,
        color_system="standard" if is_terminal else None,
        legacy_windows=False,
    ).print(lines, end="")
    return out.getvalue()
