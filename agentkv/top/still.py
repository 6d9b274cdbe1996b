"""One picture of a server, and the files that can be made of it."""

from __future__ import annotations

import io
import re
import time
from typing import Any

from rich.console import Console

from agentkv.top.fetch import Look
from agentkv.top.screen import Scene, picture

_FONT_FROM_ELSEWHERE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def as_svg(scene: Scene, *, width: int, max_rows: int) -> str:
    """The picture as a drawing of a terminal."""
    console = Console(
        record=True, file=io.StringIO(), width=width, force_terminal=True, legacy_windows=False
    )
    console.print(picture(scene, width, max_rows))
    # A picture asks nobody for a font; it is drawn in what there is.
    return _FONT_FROM_ELSEWHERE.sub("", console.export_svg(title="agentkv top"))


def as_value(url: str, look: Look) -> dict[str, Any]:
    """For JSON: what the server said, as it said it."""
    return {
        "url": url,
        "taken_at": time.time(),
        "note": look.note,
        "state": dict(look.state),
        "sessions": [dict(session) for session in look.sessions],
        "metrics": {
            name: [{"labels": labels, "value": value} for labels, value in series]
            for name, series in sorted(look.samples.items())
        },
    }
