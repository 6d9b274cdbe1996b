"""Who moves when, what becomes of a peer that fails, and how rates and ratios are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agentkv.bench.order import batches, names_of, shuffled
from agentkv.bench.rates import Rate, RateRatio
from agentkv.bench.rounds import BenchError, Contest, PeerError, run_rounds


class Scripted:
    """Takes the seconds it is told to take, or fails."""

    def __init__(self, name: str, log: list[str], load: Callable[[], float] = lambda: 2.0) -> None:
        self.name = name
        self.num_closed = 0
        self._log, self._load = log, load

    def store(self) -> float:
        self._log.append(f"{self.name} store")
        return 1.0

    def load(self) -> float:
        self._log.append(f"{self.name} load")
        return self._load()

    def facts(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        self.num_closed += 1


def failing(error: Exception) -> Callable[[], float]:
    def load() -> float:
        raise error

    return load


def no_step(_: str) -> None:
    pass


def test_all_take_turns_in_each_round_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    contest = Contest(Scripted("ours", log), [Scripted("a", log), Scripted("b", log)])
    times = run_rounds(contest, num_rounds=5, seed="1", on_step=no_step)
    assert len(log) == 6 * 6
    rounds = [log[i : i + 3] for i in range(0, len(log), 3)]
    for index, turn in enumerate(rounds):
        way = "load" if index % 2 else "store"
        assert sorted(turn) == [f"a {way}", f"b {way}", f"ours {way}"]
    assert len({tuple(turn) for turn in rounds[::2]}) > 1, "the order never changes"
    assert times["ours", "store"] == [1.0] * 5 and times["b", "load"] == [2.0] * 5


def test_the_order_follows_the_seed() -> None:
    logs: list[list[str]] = [[], [], []]
    for log, seed in zip(logs, ("1", "1", "2"), strict=True):
        contest = Contest(Scripted("ours", log), [Scripted("a", log), Scripted("b", log)])
        run_rounds(contest, num_rounds=6, seed=seed, on_step=no_step)
    assert logs[0] == logs[1] != logs[2]


def test_a_peer_that_fails_is_left_out_with_its_reason() -> None:
    log: list[str] = []
    broken = Scripted("a", log, failing(PeerError("it broke")))
    contest = Contest(Scripted("ours", log), [broken, Scripted("b", log)])
    times = run_rounds(contest, num_rounds=3, seed="1", on_step=no_step)
    assert contest.missing == {"a": "it broke"}
    assert [peer.name for peer in contest.peers] == ["b"] and broken.num_closed == 1
    assert log.count("a load") == 1
    assert len(times["ours", "load"]) == len(times["b", "load"]) == 3


def test_a_tier_that_fails_ends_the_run() -> None:
    contest = Contest(Scripted("ours", [], failing(BenchError("wrong bytes"))))
    with pytest.raises(BenchError, match="wrong bytes"):
        run_rounds(contest, num_rounds=3, seed="1", on_step=no_step)


def test_a_rate_is_the_median_rounds() -> None:
    rate = Rate.of(10**9, [0.5, 1.0, 100.0])
    assert rate.median == 1.0 and rate.rounds == (2.0, 1.0, 0.01)
    assert rate.p10 < rate.median < rate.p90


def test_a_ratio_is_that_of_the_medians_and_its_spread_that_of_the_rounds() -> None:
    ours, peer = Rate.of(10**9, [0.5, 0.5, 0.25]), Rate.of(10**9, [1.0, 1.0, 1.0])
    ratio = RateRatio.of(ours, peer)
    assert ratio.ratio == 2.0
    assert (ratio.p10, ratio.p90) == (2.0, 3.6)


def test_batches_and_orders_hold_every_block_once() -> None:
    order = shuffled(3, 1, 10)
    assert sorted(order) == list(range(10)) and order != list(range(10))
    assert [i for batch in batches(order, 4) for i in batch] == order
    assert shuffled(3, 1, 10) == order != shuffled(3, 2, 10)
    assert not set(names_of(0, 1, 8)) & set(names_of(0, 2, 8))
