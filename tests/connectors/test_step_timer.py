"""Steps are paired with their end, and only prefill is counted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kit import Rig, prompt

from agentkv.connectors.step_timer import StepTimer


def _output(**requests: tuple[int, int]) -> Any:
    """request id -> (tokens computed before, tokens in this step); names that begin with `new`
    are new requests."""
    new = [name for name in requests if name.startswith("new")]
    old = [name for name in requests if not name.startswith("new")]
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=requests[name][0]) for name in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=old, num_computed_tokens=[requests[name][0] for name in old]
        ),
        num_scheduled_tokens={name: tokens for name, (_, tokens) in requests.items()},
    )


def test_a_prefill_step_is_one_sample() -> None:
    timer = StepTimer()
    timer.scheduled(_output(new=(32, 64)), 10.0)
    sample = timer.finished(10.5)
    assert sample is not None
    assert (sample.new_tokens, sample.seconds) == (64, 0.5)
    assert sample.pairs == 64 * 32 + 64 * 65 / 2


def test_requests_of_a_step_add_up_whether_new_or_not() -> None:
    timer = StepTimer()
    timer.scheduled(_output(new1=(0, 20), old=(100, 30)), 0.0)
    sample = timer.finished(1.0)
    assert sample is not None
    assert sample.new_tokens == 50
    assert sample.pairs == 20 * 21 / 2 + 30 * 100 + 30 * 31 / 2


@pytest.mark.parametrize("output", [_output(), _output(old=(500, 1)), _output(old=(500, 5))])
def test_a_step_without_prefill_gives_no_sample(output: Any) -> None:
    timer = StepTimer()
    timer.scheduled(output, 0.0)
    assert timer.finished(1.0) is None


def test_overlapping_steps_are_timed_from_the_end_of_the_one_before() -> None:
    timer = StepTimer()
    timer.scheduled(_output(new=(0, 100)), 0.0)
    timer.scheduled(_output(new=(0, 200)), 0.1)
    first, second = timer.finished(1.0), timer.finished(1.6)
    assert first is not None and second is not None
    assert (first.new_tokens, first.seconds) == (100, 1.0)
    assert second.new_tokens == 200 and second.seconds == pytest.approx(0.6)


def test_an_end_without_a_step_is_ignored() -> None:
    assert StepTimer().finished(1.0) is None


def test_a_clock_that_stands_still_gives_no_sample() -> None:
    timer = StepTimer()
    timer.scheduled(_output(new=(0, 100)), 1.0)
    assert timer.finished(1.0) is None


def test_the_prefill_curve_learns_from_the_steps_of_an_engine(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_step_tokens=64)
    curve = rig.side._costs.prefill
    assert curve.num_observations == 0
    rig.run("r", prompt(1, 300), max_tokens=30)
    assert curve.num_observations == 5, "five prefill steps; decoding does not count"
    assert curve.seconds(64) == pytest.approx(rig.step_s, rel=0.5)
