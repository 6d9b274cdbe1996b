"""From a look to numbers, and from looks to the last minutes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentkv.top.fetch import Look
from agentkv.top.figures import Figures, at_most, figures_of
from agentkv.top.history import WINDOW_S, History

from . import answers


def test_counters_are_summed_over_engines() -> None:
    two = answers.METRICS + 'agentkv:decisions_total{engine="1",action="hold"} 6.0\n'
    counted = figures_of(answers.look(metrics=two)).counted
    assert counted.decisions == {"hold": 1210.0, "swap": 310.0}
    assert counted.regret_s == {"swap": 12.5}


def test_tiers_are_as_the_engine_tells_them() -> None:
    [engine] = figures_of(answers.look()).engines
    assert list(engine.tiers) == ["dram"]
    assert engine.tiers["dram"].size_bytes == 32 << 30 and engine.used_share == pytest.approx(0.3)


def test_tiers_that_are_not_told_are_read_from_the_metrics() -> None:
    told = answers.state(answers.engine(tiers={}), answers.engine(rank=1, tiers={}))
    metrics = answers.METRICS + 'agentkv:tier_bytes{engine="1",tier="dram"} 2.0e9\n'
    first, second = figures_of(answers.look(told=told, metrics=metrics)).engines
    assert list(first.tiers) == ["dram", "ssd"]
    assert first.tiers["dram"].used_bytes == 1e9 and first.tiers["dram"].size_bytes is None
    assert first.tiers["dram"].is_available and not first.tiers["ssd"].is_available
    assert second.tiers["dram"].used_bytes == 2e9


def test_an_engine_that_statistics_call_otherwise_is_found_by_its_place() -> None:
    told = answers.state(answers.engine(tiers={}))
    metrics = 'agentkv:tier_bytes{engine="4",tier="dram"} 2.0e9\n'
    [engine] = figures_of(answers.look(told=told, metrics=metrics)).engines
    assert engine.tiers["dram"].used_bytes == 2e9


@pytest.mark.parametrize(
    "state",
    [{}, {"engines": [{}]}, {"engines": [{"pool_blocks": "x", "tiers": [1]}]}, {"engines": 1}],
)
def test_what_is_not_told_is_zero(state: dict[str, Any]) -> None:
    figures = figures_of(Look(1.0, state=state))
    assert all(engine.used_share == 0 and not engine.tiers for engine in figures.engines)
    assert not figures.counted.decisions and figures.held_back == 0


def test_a_share_lies_under_the_bound_of_its_bucket() -> None:
    buckets = {0.1: 40.0, 1.0: 90.0, math.inf: 100.0}
    assert [at_most(buckets, share) for share in (0.1, 0.4, 0.5, 0.95)] == [0.1, 0.1, 1.0, math.inf]
    assert at_most({}, 0.5) is None and at_most({math.inf: 0.0}, 0.5) is None


# --- the last minutes ---


def figures(holds: float, free_blocks: int = 70, started_s: float = 1.0) -> Figures:
    decided = f'agentkv:decisions_total{{action="hold"}} {holds}'
    metrics = f"{decided}\nprocess_start_time_seconds {started_s}\n"
    told = answers.state(answers.engine(free_blocks=free_blocks))
    return figures_of(answers.look(told=told, metrics=metrics))


def holds(history: History) -> float | None:
    recent = history.recent()
    return None if recent is None else recent.decisions["hold"]


def test_what_has_come_since_is_told_from_the_second_look_on() -> None:
    history = History()
    history.add(0.0, figures(10))
    assert holds(history) is None and history.span_s == 0
    history.add(5.0, figures(13))
    assert holds(history) == 3 and history.span_s == 5


def test_older_looks_are_forgotten() -> None:
    history = History()
    for step in range(5):
        history.add(step * WINDOW_S / 2, figures(10 * step))
    assert holds(history) == 20 and history.span_s == WINDOW_S


@pytest.mark.parametrize("after", [figures(4), figures(40, started_s=2.0)])
def test_a_restarted_server_begins_anew(after: Figures) -> None:
    history = History()
    history.add(0.0, figures(10))
    history.add(2.0, after)
    assert holds(history) is None


def test_a_series_has_the_newest_last_and_gaps_where_nobody_looked() -> None:
    history = History()
    for at_s, free_blocks in ((0.0, 100), (1.0, 80), (WINDOW_S, 50)):
        history.add(at_s, figures(0, free_blocks))
    series = history.series(lambda found: found.engines[0].used_share, 4)
    assert series == [pytest.approx(0.1), None, None, pytest.approx(0.5)]
