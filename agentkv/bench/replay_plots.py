"""The figures of a replay: how long resumed turns waited, and what scarcity of memory does to them.

Needs matplotlib (the extra `demo`); imported by the command only when figures are asked for.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from agentkv.bench.replay_report import place_label
from agentkv.bench.replay_stats import by_place, summarize

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

_DPI: Final = 130
_COLUMNS: Final = 3
_DASHES: Final = ("-", "--", ":", "-.")
_COLORS: Final = {
    "stock": "#9a9a9a",
    "native": "#d08a2e",
    "infinite": "#222222",
    "agentkv": "#2f7fbf",
}
Rows = Sequence[Mapping[str, Any]]


def draw_all(rows: Rows) -> dict[str, Figure]:
    """Figures by file name, without its ending; that over x only where x is known."""
    figures = {"resume_ttft_cdf": _cdf(rows)}
    if any(row["x"] is not None for row in rows):
        figures["over_x"] = _over_x(rows)
    return figures


def save_all(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Writes each as PNG to the folder, which is made; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=_DPI)
    return paths


def png_bytes(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=_DPI, format="png")
    return buffer.getvalue()


def _cdf(rows: Rows) -> Figure:
    """The share of resumed turns whose first token came within a time; a panel for each regime."""
    places = by_place(rows)
    columns = min(_COLUMNS, len(places))
    lines = -(-len(places) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.4 * lines), sharey=True, squeeze=False
    )
    for axis in axes.flat[len(places) :]:
        axis.set_visible(False)
    for axis, (place, systems) in zip(axes.flat, places.items(), strict=False):
        for system, mine in systems.items():
            times_s = np.sort(
                np.concatenate([s for row in mine for s in row["resume_ttft_s"].values()])
            )
            shares = np.arange(1, len(times_s) + 1) / max(1, len(times_s))
            axis.plot(1e3 * np.maximum(times_s, 1e-3), shares, label=system, **_style(system))
        axis.set(xscale="log", xlabel="TTFT of a resumed turn, ms")
        axis.set_title(_title(place, systems), fontsize=9)
        axis.grid(alpha=0.3)
        axis.set_ylabel("share of turns")
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    return figure


def _over_x(rows: Rows) -> Figure:
    """TTFT p95 and the share computed again against x; medians, bars from bootstrap.

    A line for each system and size of DRAM: the same x is not the same with less DRAM.
    """
    panels = (
        ("resume_ttft_p95_s", "resume TTFT p95, ms", 1e3),
        ("recomputed_share", "computed again, % of reusable", 100.0),
    )
    figure, axes = plt.subplots(1, len(panels), figsize=(9.5, 3.8))
    lines: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for cell in summarize(rows):
        if cell["x"] is not None:
            lines.setdefault((cell["system"], cell["dram"]), []).append(cell)
    sizes = sorted({dram for _, dram in lines})
    for axis, (name, label, factor) in zip(axes, panels, strict=True):
        for (system, dram), cells in lines.items():
            dashes = _DASHES[sizes.index(dram) % len(_DASHES)]
            style = {"label": f"{system}, DRAM {dram:g}x", "ls": dashes, **_style(system)}
            _line(axis, cells, name, factor, style)
        axis.set(xlabel="x = live KV / (pool + DRAM)", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    marks, labels = axes[0].get_legend_handles_labels()
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.legend(marks, labels, loc="lower center", ncols=4, fontsize=7)
    return figure


def _line(
    axis: Any,
    cells: Sequence[Mapping[str, Any]],
    name: str,
    factor: float,
    style: Mapping[str, Any],
) -> None:
    points = sorted((cell["x"], cell["estimates"][name]) for cell in cells)
    middles = [factor * found["median"] for _, found in points]
    bars = [
        [0.0 if found[end] is None else factor * abs(found["median"] - found[end])]
        for end in ("low", "high")
        for _, found in points
    ]
    spread = np.reshape(bars, (2, len(points)))
    xs = [x for x, _ in points]
    axis.errorbar(xs, middles, yerr=spread, marker="o", ms=3, capsize=2, **style)


def _title(place: tuple[Any, Any], systems: Mapping[str, Rows]) -> str:
    if place[0] is None:
        return "servers that ran already"
    x = np.median([row["x"] for mine in systems.values() for row in mine])
    label = place_label({"oversubscription": place[0], "dram": place[1], "x": x})
    return f"live/pool, DRAM/pool (x): {label}"


def _style(system: str) -> dict[str, Any]:
    return {"color": _COLORS[system]} if system in _COLORS else {}
