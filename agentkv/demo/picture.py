"""The timeline picture: what every session's KV did, and what its resumes cost with and without.

Above: a lane per session, coloured by what became of the KV while its tool ran. Below: each
resume's first-token time on both servers, and the medians of the four ways to resume.
Where: last step, from the same values as the table.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.demo.ledger_file import LedgerPause, LedgerResume
from agentkv.demo.replay import PlayedTurn, Replay
from agentkv.demo.rows import PauseRow
from agentkv.demo.summary import ACTIONS, Ratio
from agentkv.demo.workload import PlannedTurn, Workload

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {"hold": "#009E73", "swap": "#56B4E9", "recompute": "#E69F00", None: "#DDDDDD"}
QUEUED, RUNNING, STOCK, PLUGIN = "#C9C9C9", "#222222", "#9A9A9A", "#0072B2"
TIER_MARKS = {
    "gpu": "#009E73",
    "dram": "#0072B2",
    "mixed": "#0072B2",
    "ssd": "#CC79A7",
    "redis": "#882255",
    "none": "#D55E00",
}
LABEL_MIN_SHARE = 0.03
LETTERS_PER_WIDTH = 190
LANE_HEIGHT = 0.62
SMALL_LABEL: dict[str, Any] = {"fontsize": 8, "ha": "center", "va": "bottom", "color": "#666666"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a lane, in seconds from the start of the replay; `kind` is a key of COLOURS."""

    start_s: float
    end_s: float
    kind: str | None


def pause_segments(
    start_s: float, end_s: float, pause: LedgerPause | None, began_at_s: float
) -> list[Segment]:
    """A pause cut where its decision changed; `began_at_s` maps the ledger's wall time."""
    if pause is None:
        return [Segment(start_s, end_s, None)]
    edges = [min(max(each.at_s - began_at_s, start_s), end_s) for each in pause.decisions]
    edges[0] = start_s
    ends = [*edges[1:], end_s]
    return [
        Segment(start, end, decision.action)
        for start, end, decision in zip(edges, ends, pause.decisions, strict=True)
        if end > start
    ]


def draw_picture(
    path: Path,
    *,
    workload: Workload,
    plugin: Replay,
    pauses: Mapping[tuple[str, int], LedgerPause],
    rows: Sequence[PauseRow],
    ratios: Mapping[str, Ratio],
    title: str,
) -> None:
    """Writes the picture; the file type follows the suffix of `path`."""
    # Not at import: matplotlib takes a second, and `agentkv demo --help` should not.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = len(workload.sessions)
    height = 0.34 * lanes + 5.2
    figure = Figure(figsize=(15, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, height_ratios=[0.34 * lanes + 1.2, 3.6], width_ratios=[3, 1])
    _draw_lanes(figure.add_subplot(grid[0, :]), workload, plugin, pauses)
    _draw_resumes(figure.add_subplot(grid[1, 0]), rows)
    _draw_ratios(figure.add_subplot(grid[1, 1]), ratios)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    figure.savefig(path, dpi=110)


def _draw_lanes(
    axes: Any, workload: Workload, plugin: Replay, pauses: Mapping[tuple[str, int], LedgerPause]
) -> None:
    for lane, session in enumerate(workload.sessions):
        turns = [plugin.turns[session.session_id, number] for number in range(len(session.turns))]
        for turn in turns:
            first_token_s = turn.start_s + turn.result.ttft_s
            _bar(axes, lane, Segment(turn.start_s, first_token_s, None), QUEUED)
            _bar(axes, lane, Segment(first_token_s, turn.end_s, None), RUNNING)
        for before, after in itertools.pairwise(turns):
            pause = pauses.get((session.session_id, before.turn))
            for part in pause_segments(before.end_s, after.start_s, pause, plugin.began_at_s):
                _bar(axes, lane, part, COLOURS[part.kind])
            _label(axes, lane, session.turns[before.turn], before, after, plugin.duration_s)
            if pause is not None and pause.resume is not None:
                mark = TIER_MARKS[source_of(pause.resume)]
                axes.plot(after.start_s, lane - 0.42, "v", color=mark, ms=4.5, clip_on=False)
    axes.set_yticks(range(len(workload.sessions)), [s.session_id for s in workload.sessions])
    axes.set_ylim(len(workload.sessions) - 0.4, -0.8)
    axes.set_xlim(0, plugin.duration_s)
    axes.set_xlabel("seconds")
    axes.set_title("Sessions with agentkv", loc="left")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    resumes = [pause.resume for pause in pauses.values() if pause.resume is not None]
    _lane_legend(axes, any_slow=any(resume.promoted_tokens for resume in resumes))


def _label(
    axes: Any,
    lane: int,
    planned: PlannedTurn,
    before: PlayedTurn,
    after: PlayedTurn,
    duration_s: float,
) -> None:
    """The tool's name on the pause, where there is room for some letters of it."""
    share = (after.start_s - before.end_s) / duration_s
    if share < LABEL_MIN_SHARE:
        return
    text = (planned.command or planned.tool or "").partition("\n")[0]
    centre = (before.end_s + after.start_s) / 2
    shown = text[: int(LETTERS_PER_WIDTH * share)]
    # A shell command is full of dollar signs, and none of them starts a formula.
    axes.text(centre, lane, shown, fontsize=7, ha="center", va="center", parse_math=False)


def _bar(axes: Any, lane: int, part: Segment, colour: str) -> None:
    axes.broken_barh(
        [(part.start_s, part.end_s - part.start_s)],
        (lane - LANE_HEIGHT / 2, LANE_HEIGHT),
        facecolors=colour,
        linewidth=0,
    )


def source_of(resume: LedgerResume) -> str:
    """The slowest tier that the KV of a resume came from."""
    return next(reversed([*resume.promoted_tokens]), resume.tier)


def _lane_legend(axes: Any, *, any_slow: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(color=QUEUED, label="waits for first token"),
        Patch(color=RUNNING, label="answers"),
    ]
    handles += [Patch(color=COLOURS[action], label=f"tool runs: {action}") for action in ACTIONS]
    marks = {"gpu": "resumed from the pool", "dram": "from DRAM", "none": "prefilled again"}
    if any_slow:
        marks |= {"ssd": "from SSD", "redis": "from Redis"}
    handles += [
        Line2D([], [], marker="v", ls="", color=TIER_MARKS[tier], label=label, ms=6)
        for tier, label in marks.items()
    ]
    axes.legend(
        handles=handles,
        ncols=len(handles),
        fontsize=8,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.1,
        columnspacing=1.2,
        handletextpad=0.4,
    )


def _draw_resumes(axes: Any, rows: Sequence[PauseRow]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    times_s = {
        ("stock vLLM", STOCK): [row.ttft_stock_s for row in rows],
        ("agentkv", PLUGIN): [row.ttft_s for row in rows],
    }
    for (name, colour), values_s in times_s.items():
        shares = [100 * (place + 0.5) / len(values_s) for place in range(len(values_s))]
        values_ms = [value * 1e3 for value in sorted(values_s)]
        axes.plot(shares, values_ms, "-o", color=colour, ms=2.5, lw=1.5, label=name)
    for level in (50, 95):
        axes.axvline(level, color="#BBBBBB", lw=0.8, ls=":", zorder=0)
        axes.text(level, 1.01, f"p{level}", transform=axes.get_xaxis_transform(), **SMALL_LABEL)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("ms, log scale")
    axes.set_xlabel("% of resumes, fastest first")
    axes.set_title("Time to the first token after a pause", loc="left")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.grid(axis="y", color="#EEEEEE", which="both")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_ratios(axes: Any, ratios: Mapping[str, Ratio]) -> None:
    times_s: dict[str, float | None] = {}
    for each in ratios.values():
        times_s[each.over], times_s[each.under] = each.over_p50_s, each.under_p50_s
    kinds = {
        "local_hit": ("stock\nprefix hit", STOCK),
        "hold": ("hold", PLUGIN),
        "prefetched": ("pre-\nfetched", PLUGIN),
        "swap": ("swap", PLUGIN),
        "recompute": ("stock\nrecompute", STOCK),
    }
    bars = [(*kinds[kind], seconds) for kind in kinds if (seconds := times_s.get(kind)) is not None]
    for place, (_, colour, seconds) in enumerate(bars):
        axes.bar(place, seconds * 1e3, color=colour, width=0.7)
        axes.text(
            place, seconds * 1e3, f"{seconds * 1e3:.0f}", ha="center", va="bottom", fontsize=9
        )
    axes.set_xticks(range(len(bars)), [label for label, _, _ in bars], fontsize=8)
    axes.set_ylabel("ms")
    axes.set_title("Median first token, same contexts", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
