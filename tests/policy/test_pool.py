"""A pool of equal sessions: how much of what a clairvoyant would save the ranking saves.

Paused sessions give way by `give_up_order`, decisions are made anew when they are due, and the
self-check decides whether predictions count: as the controller does it, without an engine.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from agentkv.policy.base import Decision, PauseView
from agentkv.policy.benefit import RankingBenefit
from agentkv.policy.expected_cost import ExpectedCostPolicy
from agentkv.policy.ranking import Candidate, is_due
from agentkv.predict import WaitEstimate

from .views import give_up_order, lognormal, make_view, pareto, wait_of

NUM_SESSIONS, ROOM, NUM_RETURNS = 24, 8, 1000
KV_BYTES = 10**9
Chance = Callable[[float], float]
Draw = Callable[[random.Random], tuple[float, Chance]]
"""A wait in seconds, and the distribution that the predictor believes it comes from."""


@dataclass
class Open:
    started_s: float
    returns_s: float
    believed: Chance
    decided: Decision = field(init=False)
    decided_s: float = 0.0


class Pool:
    """Sessions pause, return and run; `order` is "lru", "expected_cost" or "oracle"."""

    def __init__(self, order: str, draw: Draw, confidence: float, seed: int) -> None:
        self.order, self.draw, self.confidence = order, draw, confidence
        self.rng = random.Random(seed)
        self.benefit, self.policy = RankingBenefit(), ExpectedCostPolicy()
        self.open: dict[int, Open] = {}
        self.resident: set[int] = set()

    def hit_rate(self) -> float:
        events = [(self.rng.random(), name, False) for name in range(NUM_SESSIONS)]
        heapq.heapify(events)
        hits = returns = 0
        while returns < NUM_RETURNS:
            now_s, name, is_return = heapq.heappop(events)
            if is_return:
                del self.open[name]
                self.benefit.note_returned(name)
                hits += name in self.resident
                returns += 1
                self.resident.add(name)
                heapq.heappush(events, (now_s + self.rng.expovariate(1.0), name, False))
            else:
                wait_s, believed = self.draw(self.rng)
                self.open[name] = Open(now_s, now_s + wait_s, believed)
                self.decide(name, now_s)
                heapq.heappush(events, (now_s + wait_s, name, True))
            self.make_room(now_s)
        return hits / returns

    def decide(self, name: int, now_s: float) -> None:
        pause = self.open[name]
        view = self.view(pause, now_s)
        pause.decided, pause.decided_s = self.policy.decide(view), now_s
        self.benefit.note_decided(name, view, pause.decided)

    def view(self, pause: Open, now_s: float) -> PauseView:
        age_s = now_s - pause.started_s
        wait: WaitEstimate = wait_of(pause.believed, age_s, confidence=self.confidence)
        return make_view(now_s=now_s, age_s=age_s, wait=wait, kv_bytes=KV_BYTES)

    def make_room(self, now_s: float) -> None:
        while len(self.resident) > ROOM and (names := sorted(self.resident & self.open.keys())):
            self.benefit.note_pressure(len(names) * KV_BYTES)
            self.resident.discard(self.victim(names, now_s))

    def victim(self, names: list[int], now_s: float) -> int:
        if self.order == "lru":
            return min(names, key=lambda name: self.open[name].started_s)
        if self.order == "oracle":
            return max(names, key=lambda name: self.open[name].returns_s)
        for name in names:
            pause = self.open[name]
            ages = (pause.decided_s - pause.started_s, now_s - pause.started_s)
            if is_due(pause.decided, decided_age_s=ages[0], age_s=ages[1]):
                self.decide(name, now_s)
        candidates = [
            Candidate(
                decision=self.open[name].decided,
                started_s=self.open[name].started_s,
                decided_s=self.open[name].decided_s,
                returns_at_s=0.0,
            )
            for name in names
        ]
        is_trusted = self.benefit.is_worth_it
        return names[give_up_order(candidates, now_s, is_prediction_trusted=is_trusted)[0]]


def two_tools(rng: random.Random) -> tuple[float, Chance]:
    median_s, sigma = (20.0, 0.5) if rng.random() < 0.8 else (200.0, 0.5)
    return median_s * math.exp(rng.gauss(0, sigma)), lognormal(median_s, sigma)


def any_tool(rng: random.Random) -> tuple[float, Chance]:
    return min(1e3, 0.5 * ((1 - rng.random()) ** -2.5 - 1)), pareto(0.5)


def ten_times_wrong(draw: Draw) -> Draw:
    def tagged(rng: random.Random) -> tuple[float, Chance]:
        wait_s, _ = draw(rng)
        return wait_s, lognormal(wait_s * rng.choice((0.1, 10.0)) + 1e-3, 0.35)

    return tagged


def inverse(rng: random.Random) -> tuple[float, Chance]:
    wait_s, _ = two_tools(rng)
    return wait_s, lognormal(20.0 if wait_s > 60 else 200.0, 0.5)


def rates(draw: Draw, confidence: float = 1.0) -> tuple[float, float, float]:
    """Hit rates of LRU, of `expected_cost` and of a clairvoyant, on the same waits."""
    lru, ours, oracle = (
        Pool(order, draw, confidence, seed=1).hit_rate()
        for order in ("lru", "expected_cost", "oracle")
    )
    return lru, ours, oracle


def test_where_tools_tell_the_wait_most_of_the_gap_to_a_clairvoyant_closes() -> None:
    lru, ours, oracle = rates(two_tools)

    assert oracle > lru + 0.1, "there is something to win"
    assert ours >= lru + 0.4 * (oracle - lru)


@pytest.mark.parametrize("draw", [any_tool, ten_times_wrong(any_tool), inverse])
def test_where_predictions_are_useless_or_wrong_nothing_is_lost(draw: Draw) -> None:
    lru, ours, _ = rates(draw)

    assert ours >= 0.99 * lru


def test_below_the_least_confidence_it_is_lru_to_the_letter() -> None:
    lru, ours, _ = rates(two_tools, confidence=0.0)

    assert ours == lru
