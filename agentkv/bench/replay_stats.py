"""Rows summed up: medians over seeds with bootstrap intervals, and ratios of paired seeds.

Why paired: a seed is the same sessions for every system, so what a seed makes easy or hard drops
out of a ratio. Why the bootstrap: a median of few seeds has no usual formula. First-token times are
drawn at two levels, seeds and sessions within them (`replay_draws`): what would be another number
if the same were played again must not look certain. The others are drawn by seed alone; with three
seeds such an interval is little more than their range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from agentkv.bench.replay_draws import DRAWN, NUM_DRAWS, Floats, session_draws

Row = Mapping[str, Any]

METRICS: Final = (
    "resume_ttft_p50_s",
    "resume_ttft_p95_s",
    "resume_ttft_p99_s",
    "resume_ttft_mean_s",
    "itl_p99_s",
    "turns_per_hour",
    "sessions_per_hour",
    "recomputed_tokens",
    "recomputed_share",
    "paused_pool_token_s",
    "busy_share",
)
RATIOS: Final = (
    "resume_ttft_p50_s",
    "resume_ttft_p95_s",
    "resume_ttft_p99_s",
    "resume_ttft_mean_s",
    "itl_p99_s",
    "sessions_per_hour",
    "turns_per_hour",
    "recomputed_tokens",
)
BASES: Final = ("native", "stock", "infinite")
OURS: Final = "agentkv"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its 95 % bootstrap interval; none where a single number is all there is."""

    median: float
    low: float | None
    high: float | None
    seeds: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Of the values there are; None if there is none."""
    found = np.array([value for value in values if value is not None], dtype=float)
    if not len(found):
        return None
    if len(found) == 1:
        return Estimate(float(found[0]), None, None, 1)
    return _estimate(found, np.repeat(found[:, None], NUM_DRAWS, axis=1))


def _estimate(found: Floats, drawn: Floats) -> Estimate:
    """`found[i]` is the value of a seed, `drawn[i, k]` what draw `k` says of it."""
    picks = np.random.default_rng(0).integers(len(found), size=(len(found), NUM_DRAWS))
    medians = np.median(np.take_along_axis(drawn, picks, axis=0), axis=0)
    low, high = np.percentile(medians, (2.5, 97.5))
    return Estimate(float(np.median(found)), float(low), float(high), len(found))


def by_place(rows: Sequence[Row]) -> dict[tuple[Any, Any], dict[str, list[Row]]]:
    """The rows by regime and system, in the order in which they came, seeds rising."""
    grouped: dict[tuple[Any, Any], dict[str, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        place = (row["oversubscription"], row["dram"])
        grouped.setdefault(place, {}).setdefault(row["system"], []).append(row)
    order = list(dict.fromkeys((row["oversubscription"], row["dram"]) for row in rows))
    return {place: grouped[place] for place in order}


def summarize(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One object for each system and regime: `estimates` by metric."""
    return [
        {
            "system": system,
            "oversubscription": place[0],
            "dram": place[1],
            "x": _median_of(mine, "x"),
            "seeds": len(mine),
            "token_mismatches": _total(mine, "token_mismatches"),
            "estimates": _estimates(mine),
        }
        for place, systems in by_place(rows).items()
        for system, mine in systems.items()
    ]


def compare(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Ours over each baseline, by metric: medians of the ratios of paired seeds."""
    return [
        {
            "system": ours,
            "over": base,
            "oversubscription": place[0],
            "dram": place[1],
            "x": _median_of(systems[ours], "x"),
            "ratios": _ratios(systems[ours], systems[base]),
        }
        for place, systems in by_place(rows).items()
        for ours in systems
        if ours.startswith(OURS)
        for base in BASES
        if base in systems
    ]


def _estimates(rows: Sequence[Row]) -> dict[str, Any]:
    draws = [session_draws(row) for row in rows]
    found = {name: [row[name] for row in rows] for name in METRICS}
    return {name: _as_json(_of(found[name], draws, name)) for name in METRICS}


def _ratios(mine: Sequence[Row], theirs: Sequence[Row]) -> dict[str, Any]:
    by_seed = {row["seed"]: row for row in theirs}
    pairs = [(row, by_seed[row["seed"]]) for row in mine if row["seed"] in by_seed]
    draws = [_over(session_draws(over), session_draws(under)) for over, under in pairs]
    found = {name: [_ratio(over[name], under[name]) for over, under in pairs] for name in RATIOS}
    return {name: _as_json(_of(found[name], draws, name)) for name in RATIOS}


def _of(
    values: Sequence[float | None], draws: Sequence[Mapping[str, Floats]], name: str
) -> Estimate | None:
    """The median over seeds; drawn again within each where all of them can be."""
    if name not in DRAWN or not values or None in values or not all(draws):
        return estimate(values)
    return _estimate(np.array(values, dtype=float), np.stack([each[name] for each in draws]))


def _over(over: Mapping[str, Floats], under: Mapping[str, Floats]) -> dict[str, Floats]:
    return {name: over[name] / under[name] for name in over.keys() & under.keys()}


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _median_of(rows: Sequence[Row], name: str) -> float | None:
    found = estimate([row[name] for row in rows])
    return None if found is None else found.median


def _total(rows: Sequence[Row], name: str) -> int | None:
    found = [row[name] for row in rows if row[name] is not None]
    return sum(found) if found else None


def _as_json(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
