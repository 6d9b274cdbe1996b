"""Bars, sparklines, short numbers: pieces of a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

WIDE: Final = 110
"""Cells from which on there is room for more than the most needed."""
ACTION_STYLES: Final[Mapping[str, str]] = {"hold": "green", "swap": "yellow", "recompute": "red"}

_LABEL_WIDTH = 11
_STEPS = "▁▂▃▄▅▆▇█"


def labelled(label: str, text: str = "") -> Text:
    """The beginning of a line of the upper part."""
    return Text.assemble((label.ljust(_LABEL_WIDTH), "cyan"), text)


def bar(parts: Sequence[tuple[float, str]], width: int) -> str:
    """Parts of a whole, (share, letter) each, one after the other; the rest is light."""
    cells, done = "", 0.0
    for share, letter in parts:
        done = min(1.0, done + max(0.0, share))
        # What is there at all is seen.
        upto = max(round(done * width), len(cells) + 1) if share > 0 else len(cells)
        cells += letter * (min(upto, width) - len(cells))
    return cells + "░" * (width - len(cells))


def sparkline(values: Sequence[float | None], top: float) -> str:
    """A letter for each value from 0 to `top`; a space where there is none."""
    return "".join(" " if value is None else _step(value, top) for value in values)


def _step(value: float, top: float) -> str:
    share = value / top if top > 0 else 0.0
    return _STEPS[min(len(_STEPS) - 1, max(0, int(share * len(_STEPS))))]


def seconds(value: float | None) -> str:
    """At most six letters: "31 ms", "4.2 s", "42 s", "6m06s", "3h12m", "5 d"."""
    if value is None:
        return ""
    if value < 0.9995:
        return f"{value * 1e3:.0f} ms" if value else "0 s"
    if value < 99.5:
        return f"{value:.2g} s" if value < 9.95 else f"{value:.0f} s"
    minutes, rest_s = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest_s:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 100 else f"{hours / 24:.0f} d"


def count(value: float) -> str:
    """At most six letters below a trillion: "9,950", "12.4k", "3.1M"."""
    for from_value, unit_value, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= from_value:
            number = value / unit_value
            return f"{number:.3g}{unit}" if number < 999.5 else f"{number:.0f}{unit}"
    return f"{value:,.0f}"


def fit(text: str, width: int) -> str:
    """Exactly so many cells: filled with spaces, or cut with a mark of that."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…" if width > 0 else ""


def fit_right(text: str, width: int) -> str:
    """The same, at the right edge."""
    missing = width - cell_len(text)
    return " " * missing + text if missing >= 0 else fit(text, width)
