"""Pauses to decide on: a view that every test changes as it needs, and waits of known shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from agentkv.cost_model import Prices
from agentkv.policy import PauseView
from agentkv.policy.ranking import Candidate, give_up_keys
from agentkv.predict import WaitEstimate
from agentkv.predict.curve import WaitCurve

RELOAD_S, RECOMPUTE_S = 0.4, 4.0
GRID_S = tuple(1e-3 * 10 ** (i / 4) for i in range(33))


def curve_of(chance_within: Callable[[float], float], age_s: float = 0.0) -> WaitCurve:
    """What is left of a wait of this distribution that has lasted `age_s`."""
    gone = chance_within(age_s) if age_s > 0 else 0.0
    left = 1 - gone
    if left < 1e-9:
        return curve_of(pareto(max(age_s, 0.1)))
    chances = (max(0.0, chance_within(age_s + time_s) - gone) / left for time_s in GRID_S)
    return WaitCurve(GRID_S, tuple(min(1.0, chance) for chance in chances))


def pareto(scale_s: float, exponent: float = 0.4) -> Callable[[float], float]:
    return lambda time_s: 1 - (1 + max(0.0, time_s) / scale_s) ** -exponent


def lognormal(median_s: float, sigma: float) -> Callable[[float], float]:
    def chance(time_s: float) -> float:
        if time_s <= 0:
            return 0.0
        return 0.5 * math.erfc(-math.log(time_s / median_s) / (sigma * math.sqrt(2)))

    return chance


def wait_of(
    chance_within: Callable[[float], float],
    age_s: float = 0.0,
    *,
    confidence: float = 1.0,
    chance_ended: float = 0.0,
    source: str = "bash:test",
) -> WaitEstimate:
    curve = curve_of(chance_within, age_s)
    chances = tuple(chance * (1 - chance_ended) for chance in curve.chances)
    p10_s, p50_s, p90_s = (
        next((t for t, c in zip(curve.times_s, chances, strict=True) if c >= level), GRID_S[-1])
        for level in (0.1, 0.5, 0.9)
    )
    return WaitEstimate(
        p10_s,
        p50_s,
        p90_s,
        source,
        20,
        chance_ended=chance_ended,
        confidence=confidence,
        points=WaitCurve(curve.times_s, chances),
    )


def quantiles(
    p10_s: float, p50_s: float, p90_s: float, source: str = "bash:test", **more: Any
) -> WaitEstimate:
    return WaitEstimate(p10_s, p50_s, p90_s, source, 20, **more)


VIEW = PauseView(
    now_s=100.0,
    age_s=0.0,
    context_tokens=32_768,
    kv_bytes=4 * 10**9,
    wait=quantiles(6.0, 12.0, 30.0),
    recompute_s=RECOMPUTE_S,
    reload_s=RELOAD_S,
    store_s=0.0,
    dram_bytes_missing=0,
    load_bytes_per_s=10e9,
    prices=Prices(hbm=0.8, dram=0.0),
    pressure=0.8,
    min_load_tokens=512,
)


def make_view(**changes: Any) -> PauseView:
    return dataclasses.replace(VIEW, **changes)


def under(pressure: float, dram: float = 0.05) -> dict[str, Any]:
    """The fields of a view that a pressure sets."""
    return {"prices": Prices(hbm=pressure, dram=dram), "pressure": pressure}


NO_SWAP_PAYS: list[tuple[dict[str, Any], str]] = [
    ({"reload_s": 4.0}, "recompute 4 s <= reload 4 s"),
    ({"store_s": 3.7}, "recompute 4 s <= reload 4.1 s"),
    ({"context_tokens": 300}, "300 tokens are too few to reload"),
    ({"min_load_tokens": math.inf}, "too few"),
    ({"dram_bytes_missing": 4 * 10**9}, "DRAM cannot take it"),
    ({"reload_s": math.inf}, "DRAM cannot take it"),
]
"""Changes of a view that make letting go a recompute, and the words that say why."""


def give_up_order(
    candidates: Sequence[Candidate], now_s: float, *, is_prediction_trusted: bool = True
) -> list[int]:
    """Indices of the candidates, the first to give way first; equal ones stay in their order."""
    keys = give_up_keys(candidates, now_s, is_prediction_trusted=is_prediction_trusted)
    return sorted(range(len(candidates)), key=keys.__getitem__)
