"""The whole picture as lines, for a screen of any size.

From above: the server, its engines, what was counted, the sessions, what the keys do. Where the
screen is low the table keeps a third of it, and the upper part gives lines up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from agentkv.top.count_lines import count_lines
from agentkv.top.engine_lines import engine_lines
from agentkv.top.figures import Figures
from agentkv.top.history import History
from agentkv.top.marks import WIDE, seconds
from agentkv.top.page import Page
from agentkv.top.rows import Row
from agentkv.top.table import header_line, reason_line, table_lines
from agentkv.top.view import View

_KEYS = "q quit · ↑↓ move · Enter ledger · s sort · / filter"
_PAGE_KEYS = "q back · ↑↓ scroll · Enter again"


@dataclass(frozen=True, slots=True)
class Server:
    """`trouble`: why nothing has come since `told_at_s` (Unix time); empty while all is well.
    `note`: what a server that does answer leaves out. `interval_s`: None for a single look.
    """

    url: str
    told_at_s: float
    interval_s: float | None = None
    trouble: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is on the screen. `rows`: all sessions; the view has those that are shown."""

    server: Server
    figures: Figures
    history: History
    rows: Sequence[Row]
    view: View
    page: Page | None = None
    has_keys: bool = True


class Lines:
    """Lines for rich, each cut at the width; it has no need to wrap or measure them."""

    def __init__(self, lines: Sequence[Text]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, line in enumerate(self._lines):
            if number:
                yield Segment.line()
            segments = list(line.render(console)) if line.spans else []
            segments = segments or [Segment(line.plain, console.get_style(line.style))]
            yield from Segment.adjust_line_length(segments, options.max_width, pad=False)


def screen(scene: Scene, width: int, height: int) -> Lines:
    """Exactly `height` lines."""
    title = title_lines(scene.server, width)
    foot = [_foot_line(scene, width)]
    if scene.page is not None:
        body = _page_body(scene.page, scene.view, width, height - len(title) - len(foot))
    else:
        body = _table_body(scene, width, height - len(title) - len(foot))
    body += [Text("")] * (height - len(title) - len(foot) - len(body))
    return Lines([*title, *body, *foot][:height])


def picture(scene: Scene, width: int, max_rows: int | None = None) -> Lines:
    """For once: as high as it needs to be, or with so many sessions at most; no row is marked."""
    rows = scene.view.rows if max_rows is None else scene.view.rows[:max_rows]
    more = len(scene.view.rows) - len(rows)
    lines = [
        *title_lines(scene.server, width),
        *_upper(scene, width, max_engine_lines=1_000),
        Text(""),
        header_line(width),
        *table_lines(rows, None, width),
        *([Text(f"and {more:,} more", style="dim")] if more else []),
    ]
    return Lines(lines)


def title_lines(server: Server, width: int) -> list[Text]:
    """The server and the time; a second line where something is wrong."""
    told = time.strftime("%H:%M:%S", time.localtime(server.told_at_s))
    every = f" · every {server.interval_s:g} s" if server.interval_s else ""
    lines = [Text.assemble(("agentkv top ", "bold"), server.url, (f" · {told}{every}", "dim"))]
    if server.trouble:
        since = seconds(max(0.0, time.time() - server.told_at_s))
        said = f" nothing new since {told} ({since}): {server.trouble}"
        lines.append(Text(said.ljust(width), style="bold white on red"))
    elif server.note:
        lines.append(Text(f" {server.note}".ljust(width), style="black on yellow"))
    return lines


def _upper(scene: Scene, width: int, max_engine_lines: int) -> list[Text]:
    engines = engine_lines(
        scene.figures, scene.history, scene.rows, width=width, max_lines=max_engine_lines
    )
    return [*engines, *count_lines(scene.figures, scene.history, scene.rows)]


def _table_body(scene: Scene, width: int, height: int) -> list[Text]:
    upper = _upper(scene, width, max_engine_lines=max(2, height // 3))[: max(0, height * 2 // 3)]
    below = [] if width >= WIDE else [reason_line(scene.view.row, width)]
    rows = scene.view.scroll_to(height - len(upper) - len(below) - 1)
    lines = [*upper, header_line(width), *table_lines(rows, scene.view.row, width)]
    if not scene.view.rows:
        lines.append(Text(_nobody(scene), style="dim"))
    lines += [Text("")] * (height - len(lines) - len(below))
    return [*lines, *below]


def _nobody(scene: Scene) -> str:
    if scene.view.needle:
        return f"none of {len(scene.rows):,} sessions matches; Esc shows all"
    if sum(scene.figures.num_sessions.values()):
        return "none of the sessions is this key's and this salt's (--api-key, --salt)"
    return "no sessions yet"


def _page_body(page: Page, view: View, width: int, height: int) -> list[Text]:
    lines = page.lines(width)
    view.page_lines, view.height = len(lines), max(1, height)
    view.page_first = max(0, min(view.page_first, len(lines) - view.height))
    return lines[view.page_first : view.page_first + view.height]


def _foot_line(scene: Scene, width: int) -> Text:
    view = scene.view
    if view.is_typing:
        return Text.assemble("filter: ", (view.needle, "bold"), ("█", "blink"))
    if not scene.has_keys:
        return Text("Ctrl-C quits", style="dim")
    if scene.page is not None:
        return Text(_PAGE_KEYS, style="dim")
    shown = f"{len(view.rows):,} of {len(scene.rows):,} sessions by {view.sort.value}"
    shown += f" with “{view.needle}”" if view.needle else ""
    return Text.assemble((_KEYS, "dim"), " · ", shown)
