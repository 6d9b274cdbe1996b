"""The clock of an idle engine: when it ticks, how often, and when it does not."""

import asyncio
import itertools
import random
import time

import pytest

from agentkv.clock import ManualClock
from agentkv.connectors.endpoint import ticker
from agentkv.connectors.endpoint.ticker import MAX_LOST, MIN_INTERVAL_S, REPLY_TIMEOUT_S, TickPlan

from .builders import FakeEngine
from .conftest import Serve


def run(
    plan: TickPlan, seconds: float, tick_in_s: float | None, delay_s: float = 0.001
) -> list[tuple[float, int]]:
    """Plays a plan against engines that always want the next tick in `tick_in_s`."""
    clock = ManualClock()
    ticks: list[tuple[float, int]] = []
    while (next_s := plan.next_s()) is not None and next_s <= seconds:
        clock.advance(max(0.0, next_s - clock.monotonic_s()))
        engine = plan.take_due(clock.monotonic_s())
        if engine is None:
            continue
        ticks.append((clock.monotonic_s(), engine))
        clock.advance(delay_s)
        plan.arrived()
        plan.told(engine, tick_in_s, clock.monotonic_s())
    return ticks


def test_an_engine_without_open_pauses_gets_no_tick() -> None:
    plan = TickPlan()
    assert plan.next_s() is None
    plan.told(0, None, 0.0)
    assert plan.next_s() is None and plan.take_due(1e9) is None


def test_the_engine_names_the_interval() -> None:
    plan = TickPlan()
    plan.told(0, 2.0, 0.0)
    assert [round(at) for at, _ in run(plan, 10.5, tick_in_s=2.0)] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("num_engines", [1, 3, 100])
def test_never_more_than_ten_a_second_over_all_engines(num_engines: int) -> None:
    plan = TickPlan()
    for engine in range(num_engines):
        plan.told(engine, 0.0, 0.0)
    ticks = run(plan, 20.0, tick_in_s=0.0)
    assert 190 <= len(ticks) <= 201
    times = [at for at, _ in ticks]
    assert all(b - a >= MIN_INTERVAL_S - 1e-9 for a, b in itertools.pairwise(times))


def test_engines_take_turns_when_all_are_due() -> None:
    plan = TickPlan()
    for engine in range(4):
        plan.told(engine, 0.0, 0.0)
    ticked = [engine for _, engine in run(plan, 4.0, tick_in_s=0.0)]
    assert all(9 <= ticked.count(engine) <= 11 for engine in range(4))


def test_one_tick_is_on_its_way_at_a_time() -> None:
    plan = TickPlan()
    plan.told(0, 0.0, 0.0)
    plan.told(1, 0.0, 0.0)
    assert plan.take_due(1.0) == 0
    assert plan.take_due(2.0) is None
    plan.arrived()
    assert plan.take_due(2.0) == 1


def test_a_reply_to_anything_else_puts_the_tick_off() -> None:
    plan = TickPlan()
    plan.told(0, 1.0, 0.0)
    plan.told(0, 5.0, 0.9)
    assert plan.take_due(1.0) is None
    plan.told(0, None, 2.0)
    assert plan.next_s() is None


def test_lost_ticks_come_slower_and_then_not_at_all() -> None:
    plan = TickPlan()
    plan.told(0, 1.0, 0.0)
    now_s, sent = 0.0, []
    while (next_s := plan.next_s()) is not None and len(sent) < 100:
        now_s = next_s
        if plan.take_due(now_s) is not None:
            sent.append(now_s)
    gaps = [b - a for a, b in itertools.pairwise(sent)]
    assert len(sent) == MAX_LOST and gaps == sorted(gaps) and gaps[0] >= 2 * REPLY_TIMEOUT_S
    plan.told(0, 1.0, now_s)
    assert plan.next_s() == now_s + 1.0


def test_the_limits_hold_for_any_order_of_replies_and_losses() -> None:
    rng = random.Random(5)
    plan, now_s = TickPlan(), 0.0
    sent: list[float] = []
    is_on_its_way_s: float | None = None
    for _ in range(20_000):
        now_s += rng.choice((0.0, 0.001, 0.05, 0.3))
        step = rng.randrange(3)
        if step == 0:
            plan.told(rng.randrange(5), rng.choice((None, 0.0, 0.02, 1.0)), now_s)
        elif step == 1 and is_on_its_way_s is not None and rng.random() < 0.7:
            plan.arrived()
            is_on_its_way_s = None
        elif plan.take_due(now_s) is not None:
            assert is_on_its_way_s is None or now_s - is_on_its_way_s >= REPLY_TIMEOUT_S
            is_on_its_way_s = now_s
            sent.append(now_s)
    assert len(sent) > 500
    assert all(b - a >= MIN_INTERVAL_S - 1e-9 for a, b in itertools.pairwise(sent))


PAUSE = {"event": "pause", "session_id": "s"}


async def test_the_server_ticks_while_its_engine_wants_it_and_then_stops(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker, "MIN_INTERVAL_S", 0.001)
    engine = FakeEngine(num_ranks=2, first_index=4)
    served = await serve(engine)
    await asyncio.sleep(0.05)
    assert engine.sent == []
    engine.tick_in_s = 0.002
    await served.post(PAUSE, **{"X-data-parallel-rank": "1"})
    deadline_s = time.monotonic() + 60
    while len(engine.ticks) <= 10 and time.monotonic() < deadline_s:
        await asyncio.sleep(0.01)
    assert len(engine.ticks) > 10
    assert set(engine.ticks) == {1}
    engine.tick_in_s = None
    await asyncio.sleep(0.05)
    num_ticks = len(engine.ticks)
    await asyncio.sleep(0.1)
    assert len(engine.ticks) == num_ticks
    assert (await served.counters())["ticks_sent"] == num_ticks


async def test_a_dead_engine_is_ticked_no_more(serve: Serve) -> None:
    engine = FakeEngine(tick_in_s=0.01)
    served = await serve(engine)
    await served.post(PAUSE)
    engine.is_dead = True
    await asyncio.sleep(0.3)
    engine.is_dead = False
    assert len(engine.ticks) <= 1
    assert (await served.counters())["problems"] == 1
