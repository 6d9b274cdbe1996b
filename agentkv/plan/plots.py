"""Pictures of a plan, as PNG files: the memory wall, the regimes of a pause, the envelope.

Needs matplotlib (the extra `demo`); imported by the command only when pictures are asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib
import numpy as np

from agentkv.config import PricesConfig
from agentkv.geometry import KvFootprint, KvGroup
from agentkv.passport.accelerators import ACCELERATORS
from agentkv.passport.text import seconds_text
from agentkv.plan.links import LINKS
from agentkv.plan.planning import Answer, envelope
from agentkv.plan.waits import price_resume

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

_DPI: Final = 130
_GIB: Final = 2**30
_CONTEXTS: Final = np.geomspace(1024, 1_048_576, 200)
_WAITS: Final = np.geomspace(1e-2, 1e5, 300)
_KIB: Final = 1024.0

# Bytes per token and layer kind of published models in bf16.
_ARCHITECTURES: Final = (
    # The documents' ladder: 80 layers, 64 and 8 KV heads of 128; 32 layers, 8 of 128.
    ("70B, MHA", KvFootprint((KvGroup(2560 * _KIB),))),
    ("70B, GQA", KvFootprint((KvGroup(320 * _KIB),))),
    ("8B, GQA", KvFootprint((KvGroup(128 * _KIB),))),
    # DeepSeek-V3: 61 layers of 512 + 64.
    ("671B, MLA", KvFootprint((KvGroup(68.625 * _KIB),))),
    # Gemma 3 27B: 62 layers, 16 KV heads of 128, every sixth sees all, the others 1024.
    ("27B, 5 of 6 windows", KvFootprint((KvGroup(80 * _KIB), KvGroup(416 * _KIB, 1024)))),
    # Qwen 3 Next 80B: 12 layers of 2 x 256, 36 of states.
    (
        "80B, 3 of 4 recurrent",
        KvFootprint((KvGroup(24 * _KIB),), 36 * (3 * 8192 * 2 + 32 * 128 * 128 * 2)),
    ),
)
_COLORS: Final = {
    "hold": "#4c9f70",
    "dram": "#4a7fb5",
    "ssd": "#8d6cab",
    "recompute": "#c96a4a",
}


def draw_all(answer: Answer, folder: Path) -> list[Path]:
    """Writes the pictures to the folder, which is made; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _memory_wall(answer, folder / "memory_wall.png"),
        _regimes(answer, folder / "regime_map.png"),
        _envelope(answer, folder / "envelope.png"),
    ]


def _memory_wall(answer: Answer, path: Path) -> Path:
    """Bytes of one session against its context, and what devices and the planned pool have."""
    figure, axis = plt.subplots(figsize=(9.2, 5.2))
    passport = answer.question.passport
    own = [passport.footprint.bytes_for(round(n)) / _GIB for n in _CONTEXTS]
    axis.plot(_CONTEXTS, own, color="black", alpha=0.35, lw=7, label=_short(passport.name))
    for name, kept in _ARCHITECTURES:
        sizes = [kept.bytes_for(round(n)) / _GIB for n in _CONTEXTS]
        axis.plot(_CONTEXTS, sizes, lw=1.6, label=name)
    for name in ("h100", "h200", "b200"):
        _level(axis, ACCELERATORS[name].hbm_bytes / _GIB, f"memory of one {name.upper()}", "0.35")
    _level(axis, answer.question.node.pool_bytes / _GIB, "this node's KV pool", "crimson")
    axis.set(xscale="log", yscale="log", ylim=(2e-2, 6e3), xlim=(_CONTEXTS[0], _CONTEXTS[-1]))
    axis.set(ylabel="state of one session, GiB", title="The memory wall")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    _token_axis(axis)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return _save(figure, path)


def _level(axis: Any, gib: float, text: str, color: str) -> None:
    axis.axhline(gib, color=color, ls="--", lw=0.9)
    axis.text(_CONTEXTS[0] * 1.08, gib, text, color=color, fontsize=7, va="bottom")


def _regimes(answer: Answer, path: Path) -> Path:
    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.8))
    _costs(axes[0], answer)
    _map(axes[1], answer)
    return _save(figure, path)


def _prices(answer: Answer, context_tokens: Any, kv_bytes: Any, recompute_s: Any) -> dict[str, Any]:
    """Seconds of a session's own contended memory that each action costs, by wait.

    hold: the wait; a tier: two transfers and its rent; recompute: the prefill, as in
    `agentkv.policy.break_even`.
    """
    node = answer.question.node
    prices = PricesConfig()
    host = LINKS[node.accelerator.link].of(node.replica_devices)
    drive = LINKS["nvme4"].of(node.replica_devices)
    waits = np.broadcast_to(_WAITS[:, None], (len(_WAITS), len(np.atleast_1d(kv_bytes))))
    return {
        "hold": waits,
        "dram": 2 * kv_bytes / host + answer.question.dram_price * waits,
        "ssd": 2 * kv_bytes / drive + prices.ssd_over_hbm * waits,
        "recompute": np.broadcast_to(recompute_s, waits.shape),
    }


def _of_contexts(answer: Answer, contexts: Any) -> tuple[Any, Any]:
    """Bytes and seconds to compute again of each context."""
    question = answer.question
    passport, node = question.passport, question.node
    found = [price_resume(passport, node, n, question.mfu) for n in contexts]
    return np.array([r.kv_bytes for r in found]), np.array([r.recompute_s for r in found])


def _costs(axis: Any, answer: Answer) -> None:
    context = answer.resume.context_tokens
    kv_bytes, recompute_s = _of_contexts(answer, [context])
    for name, costs in _prices(answer, context, kv_bytes, recompute_s).items():
        axis.plot(_WAITS, costs[:, 0], color=_COLORS[name], lw=2, label=_LABELS[name])
    axis.set(xscale="log", yscale="log", xlabel="tool wait", ylabel="cost, seconds of its memory")
    axis.set_title(f"A pause at {context:,.0f} tokens, by its wait", fontsize=10)
    axis.set(xlim=(_WAITS[0], _WAITS[-1]), ylim=(1e-3, 1e3))
    _time_axis(axis.xaxis)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower right")


_LABELS: Final = {
    "hold": "hold in GPU memory",
    "dram": "swap to DRAM",
    "ssd": "park on an SSD",
    "recompute": "recompute",
}


def _map(axis: Any, answer: Answer) -> None:
    kv_bytes, recompute_s = _of_contexts(answer, _CONTEXTS)
    costs = _prices(answer, _CONTEXTS, kv_bytes, recompute_s)
    cheapest = np.argmin(np.stack(list(costs.values())), axis=0)
    colors = [_COLORS[name] for name in costs]
    axis.contourf(_CONTEXTS, _WAITS, cheapest, levels=[-0.5, 0.5, 1.5, 2.5, 3.5], colors=colors)
    for number, name in enumerate(costs):
        if np.any(cheapest == number):
            axis.plot([], [], color=_COLORS[name], lw=8, label=_LABELS[name])
    axis.set(xscale="log", yscale="log", ylabel="tool wait")
    host = answer.question.node.accelerator.link
    axis.set_title(f"Cheapest under contention ({host}, NVMe)", fontsize=10)
    _token_axis(axis)
    _time_axis(axis.yaxis)
    axis.legend(fontsize=8, loc="upper left", framealpha=0.9)


def _envelope(answer: Answer, path: Path) -> Path:
    """Sessions against context on the same number of devices of each kind."""
    figure, axis = plt.subplots(figsize=(7.6, 4.8))
    question = answer.question
    longest = question.passport.max_context_tokens or _CONTEXTS[-1]
    shortest = max(1024, round(1.05 * question.demand.shared_tokens))
    contexts = np.geomspace(shortest, max(longest, 2 * shortest), 150).round().astype(int)
    has_room = False
    for row in envelope(question, contexts.tolist()):
        points = [(context, n) for context, n in row.sessions if n]
        if points:
            has_room = True
            axis.plot(*zip(*points, strict=True), lw=1.8, label=row.accelerator.upper())
    axis.set(xscale="log", yscale="log", ylabel="sessions that fit in GPU memory")
    node = question.node
    axis.set_title(f"{_short(question.passport.name)} on {node.num_devices} devices of each kind")
    _token_axis(axis)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.grid(alpha=0.3, which="both")
    axis.axvline(question.demand.context.mean, color="0.4", ls=":", lw=1, label="planned context")
    if has_room:
        axis.legend(fontsize=9)
    return _save(figure, path)


def _short(name: str) -> str:
    """The last part of a path, or of its folder where that is all that tells models apart."""
    parts = Path(name)
    return parts.parent.name or name if parts.name == "config.json" else parts.name


def _token_axis(axis: Any) -> None:
    ticks = [2**n for n in range(10, 21)]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    labels = FuncFormatter(lambda value, _: f"{value / 1024:g}K" if value < 2**20 else "1M")
    axis.xaxis.set_major_formatter(labels)
    axis.set_xlabel("context, tokens")


def _time_axis(axis: Any) -> None:
    axis.set_major_locator(FixedLocator([0.01, 0.1, 1, 10, 60, 600, 3600, 36_000]))
    axis.set_minor_locator(NullLocator())
    names = {60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h"}
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: names.get(round(value)) or seconds_text(value))
    )


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)
    return path
