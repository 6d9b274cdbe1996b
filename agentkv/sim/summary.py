"""What the runs say together: means with 95 % intervals over seeds, and differences to `lru`.

Intervals are Student's t over seeds. Differences are paired: the same seed is the same workload, so
what is common to both drops out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.table import Table

Row = Mapping[str, Any]

BASE: Final = "lru"
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; 1.96 at infinity.
_T95: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T95_MANY: Final = 1.96


@dataclass(frozen=True, slots=True)
class Interval:
    """`half`: half the width of the 95 % interval; NaN for a single value."""

    mean: float
    half: float

    def text(self, factor: float = 1.0) -> str:
        half = "" if math.isnan(self.half) else f"±{self.half * factor:.2g}"
        return f"{self.mean * factor:.3g}{half}"


def interval(values: Iterable[float]) -> Interval:
    """Mean and 95 % interval of these values."""
    found = np.array(list(values), dtype=float)
    if len(found) < 2:
        return Interval(float(found.mean()) if len(found) else math.nan, math.nan)
    freedom = len(found) - 1
    t95 = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    return Interval(float(found.mean()), float(t95 * found.std(ddof=1) / math.sqrt(len(found))))


@dataclass(frozen=True, slots=True)
class Cell:
    """All seeds of one policy at one point of the sweep."""

    policy: str
    oversubscription: float
    dram: float
    rows: Sequence[Row]
    base: Sequence[Row]  # of `lru`, the same seeds in the same order; empty where there is none

    def of(self, key: str) -> Interval:
        return interval(row[key] for row in self.rows)

    def against_base(self, key: str) -> Interval | None:
        """The paired difference to `lru`; None for `lru` itself, or without it."""
        if not self.base or self.policy == BASE:
            return None
        return interval(
            row[key] - base[key] for row, base in zip(self.rows, self.base, strict=True)
        )


def cells(rows: Sequence[Row]) -> list[Cell]:
    """The rows gathered over seeds, in the order in which they came."""
    grouped: dict[tuple[float, float, str], list[Row]] = {}
    for row in rows:
        key = (row["oversubscription"], row["dram"], row["policy"])
        grouped.setdefault(key, []).append(row)
    found = []
    for (ratio, dram, policy), mine in grouped.items():
        base = grouped.get((ratio, dram, BASE), [])
        has_pairs = [row["seed"] for row in base] == [row["seed"] for row in mine]
        found.append(Cell(policy, ratio, dram, mine, base if has_pairs else []))
    return found


def table(rows: Sequence[Row]) -> Table:
    """Means ± 95 % intervals; in parentheses the paired difference to `lru`."""
    view = Table(title="mean ± 95 % over seeds (paired difference to lru)")
    for name in ("o/D (x)", "policy", "recomputed, %", "mean stall, s", "p95 stall, s"):
        view.add_column(name, justify="left" if name == "policy" else "right")
    for name in ("sessions/h", "reload hidden, %"):
        view.add_column(name, justify="right")
    before = None
    for cell in cells(rows):
        place = (cell.oversubscription, cell.dram)
        label = f"{cell.oversubscription:g}/{cell.dram:g} ({cell.rows[0]['x']:.2g})"
        view.add_row(
            label if place != before else "",
            cell.policy,
            _text(cell, "recomputed_share", 100),
            _text(cell, "mean_resume_stall_s"),
            _text(cell, "p95_resume_stall_s"),
            _text(cell, "sessions_per_hour"),
            _hidden(cell.rows),
        )
        before = place
    return view


def _text(cell: Cell, key: str, factor: float = 1.0) -> str:
    difference = cell.against_base(key)
    text = cell.of(key).text(factor)
    return text if difference is None else f"{text} ({difference.text(factor)})"


def _hidden(rows: Sequence[Row]) -> str:
    hidden = sum(row["hidden_reload_s"] for row in rows)
    total = hidden + sum(row["reload_s"] for row in rows)
    return f"{100 * hidden / total:.0f}" if total > 0 else "-"
