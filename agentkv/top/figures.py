"""The numbers of one look: what each engine's pool and tiers hold, and what was counted so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from agentkv import metrics
from agentkv.doctor.live_rules import exposed_name
from agentkv.doctor.prometheus_text import Samples, by_label, total
from agentkv.metrics import Metric
from agentkv.terminal_text import clean
from agentkv.top.fetch import Look

_WAITING = "vllm:num_requests_waiting"
_FIRST_TOKEN = "vllm:time_to_first_token_seconds"
_CACHE_CONFIG = "vllm:cache_config_info"

Amounts = Mapping[str, float]
Buckets = Mapping[float, float]
"""Of a histogram: how many were at most so many seconds, by that bound, infinity among them."""


@dataclass(frozen=True, slots=True)
class TierFigures:
    """A tier below the pool. `size_bytes`: None where it has no limit that is known."""

    used_bytes: float
    size_bytes: float | None = None
    is_available: bool = True


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine; `pool_blocks` is 0 where it did not say."""

    rank: int
    pool_blocks: int
    free_blocks: int
    pressure: float
    tiers: Mapping[str, TierFigures]

    @property
    def used_share(self) -> float:
        """Of the pool, by running turns."""
        return 1 - self.free_blocks / self.pool_blocks if self.pool_blocks else 0.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters since the server's start, over all engines; they only grow."""

    decisions: Amounts
    regret_s: Amounts
    forecasts: Amounts
    resume_tokens: Amounts
    prefetches: Amounts
    prefetch_outcomes: Amounts

    def since(self, old: Counted) -> Counted:
        """What came after `old`."""
        return Counted(
            **{
                each.name: _grown(getattr(old, each.name), getattr(self, each.name))
                for each in fields(self)
            }
        )

    def has_gone_back(self, old: Counted) -> bool:
        """Whether a counter is lower than before: the server was started anew."""
        return any(
            getattr(self, each.name).get(label, 0.0) < value
            for each in fields(self)
            for label, value in getattr(old, each.name).items()
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """`num_sessions` by state, of all callers; `held_back`: turns that admission lets wait.
    `resume_ttft` by source. `started_s`: Unix time of the server's start, if told.
    """

    engines: Sequence[EngineFigures]
    num_sessions: Mapping[str, int]
    requests_waiting: int
    held_back: int
    block_tokens: int
    counted: Counted
    resume_ttft: Mapping[str, Buckets]
    first_token: Buckets
    started_s: float | None


def figures_of(look: Look) -> Figures:
    """Numbers that are not there are 0."""
    samples = look.samples
    states = _objects(look.state.get("engines"))
    started = samples.get("process_start_time_seconds")
    return Figures(
        engines=[_engine(state, samples, index) for index, state in enumerate(states)],
        num_sessions=_sums(state.get("sessions") for state in states),
        requests_waiting=_whole(total(samples, _WAITING)),
        held_back=_whole(total(samples, metrics.ADMISSION_WAITING.name)),
        block_tokens=_block_tokens(samples),
        counted=Counted(
            decisions=_by(samples, metrics.DECISIONS),
            regret_s=_by(samples, metrics.REGRET_SECONDS),
            forecasts=_by(samples, metrics.FORECASTS),
            resume_tokens=_by(samples, metrics.RESUME_TOKENS),
            prefetches=_by(samples, metrics.PREFETCHES),
            prefetch_outcomes=_by(samples, metrics.PREFETCH_OUTCOMES),
        ),
        resume_ttft=_histograms(samples, metrics.RESUME_TTFT.name, "source"),
        first_token=_histograms(samples, _FIRST_TOKEN, "").get("", {}),
        started_s=_number(look.state.get("started_s")) or (started[0][1] if started else None),
    )


def at_most(buckets: Buckets, share: float) -> float | None:
    """The lowest bound under which this share of the values lies; None where there are none."""
    wanted = share * buckets.get(math.inf, 0.0)
    if not wanted:
        return None
    return min((bound for bound, count in buckets.items() if count >= wanted), default=math.inf)


def _engine(state: Mapping[str, Any], samples: Samples, index: int) -> EngineFigures:
    rank = _whole(state.get("rank", index))
    return EngineFigures(
        rank=rank,
        pool_blocks=_whole(state.get("pool_blocks")),
        free_blocks=_whole(state.get("free_blocks")),
        pressure=_number(state.get("pressure")),
        tiers=_told_tiers(state) or _counted_tiers(samples, _label_of(rank, index, samples)),
    )


def _told_tiers(state: Mapping[str, Any]) -> dict[str, TierFigures]:
    told = state.get("tiers")
    return {
        clean(name): TierFigures(
            used_bytes=_number(tier.get("used_bytes")),
            size_bytes=_number(tier.get("size_bytes")) or None,
            is_available=tier.get("is_available") is not False,
        )
        for name, tier in (told.items() if isinstance(told, dict) else ())
        if isinstance(tier, dict)
    }


def _counted_tiers(samples: Samples, engine: str) -> dict[str, TierFigures]:
    """From /metrics, which knows no sizes."""
    names = by_label(samples, metrics.TIER_BYTES.name, "tier")
    return {
        name: TierFigures(
            used_bytes=total(samples, metrics.TIER_BYTES.name, tier=name, engine=engine),
            is_available=_is_available(samples, name, engine),
        )
        for name in sorted(names, key=_tier_order)
    }


def _label_of(rank: int, index: int, samples: Samples) -> str:
    """What vLLM's statistics call the engine: its rank, or it stands in the same place."""
    series = samples.get(metrics.TIER_BYTES.name, ())
    labels = sorted({has.get("engine", "") for has, _ in series}, key=lambda label: label.zfill(9))
    if str(rank) in labels or index >= len(labels):
        return str(rank)
    return labels[index]


def _is_available(samples: Samples, tier: str, engine: str) -> bool:
    """DRAM says nothing about it: it is always."""
    series = samples.get(metrics.TIER_AVAILABLE.name, ())
    mine = [
        value for has, value in series if (has.get("tier"), has.get("engine")) == (tier, engine)
    ]
    return all(value >= 1 for value in mine)


def _tier_order(name: str) -> tuple[int, str]:
    known = ("dram", "ssd", "redis", "lmcache")
    return (known.index(name) if name in known else len(known), name)


def _histograms(samples: Samples, name: str, label: str) -> dict[str, dict[float, float]]:
    """By the values of one label, over all engines."""
    found: dict[str, dict[float, float]] = {}
    for has, value in samples.get(f"{name}_bucket", ()):
        buckets = found.setdefault(has.get(label, ""), {})
        bound = float(has.get("le", "inf"))
        buckets[bound] = buckets.get(bound, 0.0) + value
    return {key: buckets for key, buckets in found.items() if buckets.get(math.inf)}


def _block_tokens(samples: Samples) -> int:
    sizes = [labels.get("block_size", "") for labels, _ in samples.get(_CACHE_CONFIG, ())]
    return int(sizes[0]) if sizes and sizes[0].isdigit() else 0


def _sums(counts: Any) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in counts:
        for state, count in each.items() if isinstance(each, dict) else ():
            sums[state] = sums.get(state, 0) + _whole(count)
    return sums


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _grown(old: Amounts, new: Amounts) -> dict[str, float]:
    return {label: max(0.0, value - old.get(label, 0.0)) for label, value in new.items()}


def _by(samples: Samples, metric: Metric) -> dict[str, float]:
    return by_label(samples, exposed_name(metric), metric.labels[0])


def _number(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return float(value) if is_number else 0.0


def _whole(value: Any) -> int:
    return int(_number(value))
