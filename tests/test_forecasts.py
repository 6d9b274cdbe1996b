"""Waits are held against their forecasts, resumes and prefixes are counted where they are known."""

from __future__ import annotations

import pytest

from agentkv import forecasts, metrics
from agentkv.events import TurnTag
from agentkv.forecasts import Forecasts
from agentkv.metrics import Metric, Recorder
from agentkv.predict import WaitEstimate
from tests.test_controller import BLOCK, World
from tests.test_prefix_tree import chain

TEN = WaitEstimate(p10_s=5, p50_s=10, p90_s=20, confidence=1.0, source="test", num_observed=9)


def counted(recorder: Recorder, metric: Metric) -> dict[tuple[str, ...], float]:
    counters = recorder.take().counters.items()
    return {labels: value for (each, labels), value in counters if each is metric}


@pytest.mark.parametrize(
    ("wait_s", "outcome"),
    [(4.9, "earlier"), (5, "inside"), (10, "inside"), (20, "inside"), (20.1, "later")],
)
def test_a_wait_is_held_against_its_interval(wait_s: float, outcome: str) -> None:
    recorder = Recorder()
    known = Forecasts(recorder)
    known.note(1, TEN, age_s=0)
    known.judge(1, wait_s)
    assert counted(recorder, metrics.FORECASTS) == {(outcome,): 1}
    known.judge(1, wait_s)
    assert counted(recorder, metrics.FORECASTS) == {}


def test_a_later_forecast_takes_the_place_of_the_first_and_counts_from_the_beginning() -> None:
    recorder = Recorder()
    known = Forecasts(recorder)
    known.note(1, TEN, age_s=0)
    known.note(1, TEN, age_s=100)
    known.judge(1, 106)
    assert counted(recorder, metrics.FORECASTS) == {("inside",): 1}


def test_forecasts_that_are_never_judged_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "MAX_OPEN", 3)
    recorder = Recorder()
    known = Forecasts(recorder)
    for pause_id in range(5):
        known.note(pause_id, TEN, age_s=0)
    for pause_id in range(5):
        known.judge(pause_id, 10)
    assert counted(recorder, metrics.FORECASTS) == {("inside",): 3}


@pytest.mark.parametrize(("wait_s", "outcome"), [(60, "inside"), (0.01, "earlier"), (900, "later")])
def test_the_controller_judges_the_forecast_that_the_pause_began_with(
    wait_s: float, outcome: str
) -> None:
    world = World()
    world.turn("a", range(10), TurnTag(expected_wait_s=60))
    world.clock.advance(wait_s)
    world.turn("a", range(12), gpu=10 * BLOCK)
    assert counted(world.recorder, metrics.FORECASTS) == {(outcome,): 1}


def test_what_a_signal_tells_of_a_pause_is_forecast_anew() -> None:
    world = World()
    world.turn("a", range(10), TurnTag(expected_wait_s=1))
    world.clock.advance(0.1)
    [session] = world.controller.sessions
    world.controller.retag(session, TurnTag(expected_wait_s=300))
    world.clock.advance(300)
    world.turn("a", range(12), gpu=10 * BLOCK)
    assert counted(world.recorder, metrics.FORECASTS) == {("inside",): 1}


def test_a_decision_counts_the_bytes_that_it_is_about() -> None:
    world = World()
    world.turn("a", range(10))
    assert counted(world.recorder, metrics.DECIDED_BYTES) == {("hold",): (10 * BLOCK + 1) * 1024}


def test_a_resume_counts_how_long_its_turn_waited_for_blocks() -> None:
    world = World()
    world.turn("a", range(10))
    hashes = chain(*range(12))
    tokens = len(hashes) * BLOCK
    world.controller.turn_arrived(
        "r", name="a", scope="", hashes=hashes, prompt_tokens=tokens, tag=TurnTag()
    )
    world.clock.advance(0.25)
    world.controller.turn_scheduled("r", gpu_hit_tokens=0, dram_hit_tokens=10 * BLOCK)
    samples = world.recorder.take().samples
    assert samples[metrics.RESUME_WAIT, ("dram",)] == [pytest.approx(0.25)]


def test_every_prompt_token_is_found_or_not_by_the_class_of_its_session() -> None:
    world = World()
    world.turn("a", range(10), gpu=4 * BLOCK)
    world.turn("a", range(12), gpu=3 * BLOCK, dram=5 * BLOCK)
    world.turn(None, range(100, 106))
    world.turn(None, range(100, 108), gpu=100 * BLOCK)
    found = counted(world.recorder, metrics.PREFIX_TOKENS)
    blocks = {labels: tokens / BLOCK for labels, tokens in found.items()}
    assert blocks == {
        ("first", "yes"): 4,
        ("first", "no"): 6 + 6,
        ("named", "yes"): 8,
        ("named", "no"): 4,
        ("inferred", "yes"): 8,
    }
