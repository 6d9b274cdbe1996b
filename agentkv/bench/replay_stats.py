"""Rows summed up: medians over seeds with bootstrap intervals, and ratios of paired seeds.

Why paired: a seed is the same sessions for every system, so what a seed makes easy or hard drops
out of a ratio. Why the bootstrap: a median of few seeds has no usual formula. With three seeds an
interval is little more than their range, and says so by its width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

Row = Mapping[str, Any]

RESAMPLES: Final = 2_000
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
    """A median with its 95 % bootstrap interval; no interval for a single seed."""

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
    draws = np.random.default_rng(0).choice(found, (RESAMPLES, len(found)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
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
            "estimates": {name: _as_json(estimate([r[name] for r in mine])) for name in METRICS},
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
            "ratios": {
                name: _as_json(estimate(list(_ratios(systems[ours], systems[base], name))))
                for name in RATIOS
            },
        }
        for place, systems in by_place(rows).items()
        for ours in systems
        if ours.startswith(OURS)
        for base in BASES
        if base in systems
    ]


def _ratios(mine: Sequence[Row], theirs: Sequence[Row], name: str) -> Iterator[float | None]:
    by_seed = {row["seed"]: row[name] for row in theirs}
    for row in mine:
        over, under = row[name], by_seed.get(row["seed"])
        yield over / under if over is not None and under else None


def _median_of(rows: Sequence[Row], name: str) -> float | None:
    found = estimate([row[name] for row in rows])
    return None if found is None else found.median


def _total(rows: Sequence[Row], name: str) -> int | None:
    found = [row[name] for row in rows if row[name] is not None]
    return sum(found) if found else None


def _as_json(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)
