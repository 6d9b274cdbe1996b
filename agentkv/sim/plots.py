"""Pictures of a sweep, as PNG files: resume TTFT, goodput, token-seconds, and the regime map.

Needs matplotlib (the extra `demo`); imported by the command only when pictures are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from agentkv.config import AgentKVConfig
from agentkv.sim.profiles import Profile
from agentkv.sim.run import RunResult
from agentkv.sim.summary import Cell, cells

matplotlib.use("Agg")

from matplotlib import pyplot as plt

_DPI = 130
_COLUMNS = 4
_CONTEXTS = np.geomspace(1e3, 2e5, 160)
_WAITS = np.geomspace(1e-2, 3e3, 160)


def draw_all(results: Sequence[RunResult], profile: Profile, folder: Path) -> list[Path]:
    """Writes all pictures to the folder, which is made; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [result.row for result in results]
    found = cells(rows)
    return [
        _ttft(results, folder / "resume_ttft.png"),
        _over_sessions(found, "sessions_per_hour", "sessions per hour", folder / "goodput.png"),
        _over_sessions(
            found,
            "gpu_paused_token_s",
            "paused token-seconds in the GPU pool",
            folder / "token_seconds.png",
        ),
        _regimes(results, profile, folder / "regime_map.png"),
    ]


def _ttft(results: Sequence[RunResult], path: Path) -> Path:
    """The share of resumed turns whose first token came within a time; a panel per cell."""
    places = list(dict.fromkeys((r.row["oversubscription"], r.row["dram"]) for r in results))
    columns = min(_COLUMNS, len(places))
    rows = -(-len(places) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4 * columns, 3.5 * rows), sharey=True, squeeze=False
    )
    for axis in axes.flat[len(places) :]:
        axis.set_visible(False)
    for axis, place in zip(axes.flat, places, strict=False):
        by_policy: dict[str, list[float]] = {}
        for result in results:
            if (result.row["oversubscription"], result.row["dram"]) == place:
                times = by_policy.setdefault(result.row["policy"], [])
                times.extend(resume[2] for resume in result.resumes)
        for policy, seconds in by_policy.items():
            ordered = np.sort(np.maximum(seconds, 1e-3))
            axis.plot(ordered, np.arange(1, len(ordered) + 1) / max(1, len(ordered)), label=policy)
        axis.set(xscale="log", xlabel="TTFT of a resumed turn, s")
        axis.set_title(f"{place[0]:g}x the pool, DRAM {place[1]:g}x", fontsize=9)
        axis.grid(alpha=0.3)
        axis.set_ylabel("share of turns")
    axes.flat[0].legend(fontsize=7)
    return _save(figure, path)


def _over_sessions(found: Sequence[Cell], key: str, label: str, path: Path) -> Path:
    """A quantity against the number of agents; a panel per size of DRAM, 95 % bars over seeds."""
    sizes = list(dict.fromkeys(cell.dram for cell in found))
    figure, axes = plt.subplots(1, len(sizes), figsize=(4 * len(sizes), 3.5), squeeze=False)
    for axis, dram in zip(axes[0], sizes, strict=True):
        lines: dict[str, list[tuple[int, float, float]]] = {}
        for cell in found:
            if cell.dram == dram:
                value = cell.of(key)
                half = 0.0 if np.isnan(value.half) else value.half
                point = (cell.rows[0]["slots"], value.mean, half)
                lines.setdefault(cell.policy, []).append(point)
        for policy, points in lines.items():
            slots, means, halves = zip(*sorted(points), strict=True)
            axis.errorbar(slots, means, yerr=halves, marker="o", ms=3, capsize=2, label=policy)
        axis.set(xlabel="agents at a time", title=f"DRAM {dram:g}x the pool", ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel(label)
    axes[0][-1].legend(fontsize=7)
    return _save(figure, path)


def _regimes(results: Sequence[RunResult], profile: Profile, path: Path) -> Path:
    """What is cheapest for a context and a wait; and where the policy saved stalls."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    _cheapest(axes[0], profile)
    _saved(axes[1], results)
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="context, tokens", ylabel="wait, s")
    return _save(figure, path)


def _cheapest(axis: Any, profile: Profile) -> None:
    """For a wait that is known, while the pool is contended.

    hold: the wait; swap: a reload; recompute: a prefill; all in seconds of the session's own
    memory, as in `policy.break_even`.
    """
    contexts, waits = np.meshgrid(_CONTEXTS, _WAITS)
    reload_s = contexts * profile.bytes_per_token / profile.load_bytes_per_s
    reload_s += profile.load_latency_s
    recompute_s = contexts * (1 + contexts / 2 / profile.prefill_x0_tokens)
    recompute_s /= profile.prefill_tokens_per_s
    best = np.argmin(np.stack([waits, reload_s, recompute_s]), axis=0)
    colors = ["#4c9f70", "#4a7fb5", "#c96a4a"]
    axis.contourf(contexts, waits, best, levels=[-0.5, 0.5, 1.5, 2.5], colors=colors)
    for color, name in zip(colors, ("hold", "swap", "recompute"), strict=True):
        axis.plot([], [], color=color, lw=8, label=name)
    axis.set_title(f"cheapest action under contention ({profile.name})", fontsize=9)
    axis.legend(fontsize=8, loc="upper left")


def _saved(axis: Any, results: Sequence[RunResult]) -> None:
    """Mean stall of the first policy less that of the default or last one, all runs together."""
    policies = list(dict.fromkeys(result.row["policy"] for result in results))
    other = AgentKVConfig().policy if AgentKVConfig().policy in policies else policies[-1]
    first, last = (_mean_stalls(results, policy) for policy in (policies[0], other))
    saved = first - last
    most = max(1e-3, float(np.nanmax(np.abs(saved), initial=0.0)))
    mesh = axis.pcolormesh(
        _CONTEXTS[::8], _WAITS[::8], saved.T, cmap="RdYlGn", vmin=-most, vmax=most
    )
    axis.figure.colorbar(mesh, ax=axis, label="stall saved per turn, s")
    axis.set_title(f"{other} against {policies[0]}", fontsize=9)


def _mean_stalls(results: Sequence[RunResult], policy: str) -> Any:
    """By context and wait; NaN where no turn came back from such a pause."""
    resumes = [each for r in results if r.row["policy"] == policy for each in r.resumes]
    found = np.array(resumes or np.empty((0, 4)), dtype=float)
    waits_s = np.clip(found[:, 1], _WAITS[0], _WAITS[-9])
    bins = (_CONTEXTS[::8], _WAITS[::8])
    count, _, _ = np.histogram2d(found[:, 0], waits_s, bins)
    total, _, _ = np.histogram2d(found[:, 0], waits_s, bins, weights=found[:, 3])
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path
