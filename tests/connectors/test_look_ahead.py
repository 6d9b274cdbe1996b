"""When time alone changes what there is to do, and which requests a reset preempted."""

from __future__ import annotations

import pytest
from kit.rig import prompt
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from agentkv.clock import ManualClock
from agentkv.connectors.look_ahead import LookAhead
from agentkv.connectors.preemptions import Preemptions


class Walk:
    """What is found by walking over all pauses, and how often somebody walked."""

    def __init__(self, found_s: float | None) -> None:
        self.found_s = found_s
        self.num_walks = 0

    def __call__(self) -> float | None:
        self.num_walks += 1
        return self.found_s


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(500.0)


def test_the_moment_comes_nearer_without_another_walk(clock: ManualClock) -> None:
    look, walk = LookAhead(clock), Walk(8.0)
    assert look.next_s(walk, num_pauses=100_000) == 8.0
    clock.advance(5.0)
    assert look.next_s(walk, num_pauses=100_000) == pytest.approx(3.0)
    clock.advance(5.0)
    assert look.next_s(walk, num_pauses=100_000) == 0.0
    assert walk.num_walks == 1


def test_with_few_pauses_a_change_is_seen_soon(clock: ManualClock) -> None:
    look, walk = LookAhead(clock), Walk(8.0)
    look.next_s(walk, num_pauses=10)
    walk.found_s = 1.0
    clock.advance(0.001)
    assert look.next_s(walk, num_pauses=10) == pytest.approx(7.999), "not yet"
    clock.advance(0.0011)
    assert look.next_s(walk, num_pauses=10) == 1.0
    assert walk.num_walks == 2


def test_that_there_is_nothing_is_remembered_too(clock: ManualClock) -> None:
    look, walk = LookAhead(clock), Walk(None)
    assert look.next_s(walk, num_pauses=1000) is None
    walk.found_s = 1.0
    assert look.next_s(walk, num_pauses=1000) is None
    clock.advance(0.21)
    assert look.next_s(walk, num_pauses=1000) == 1.0


def test_without_pauses_each_question_walks_over_nothing(clock: ManualClock) -> None:
    look, walk = LookAhead(clock), Walk(None)
    assert [look.next_s(walk, num_pauses=0) for _ in range(3)] == [None] * 3
    assert walk.num_walks == 3


def test_a_moment_that_has_passed_is_now(clock: ManualClock) -> None:
    assert LookAhead(clock).next_s(lambda: -4.0, num_pauses=1) == 0.0


def request(num_preemptions: int = 0) -> Request:
    made = Request("r", prompt(1, 16), SamplingParams(max_tokens=1), None)
    made.num_preemptions = num_preemptions
    return made


def test_a_preemption_that_no_step_made_is_new() -> None:
    preemptions = Preemptions()
    assert not preemptions.is_new(request())
    assert preemptions.is_new(request(1))


def test_a_preemption_by_a_step_is_known_and_the_next_one_is_not() -> None:
    preemptions, one = Preemptions(), request(1)
    preemptions.note([one])
    assert len(preemptions) == 1 and not preemptions.is_new(one)
    one.num_preemptions += 1
    assert preemptions.is_new(one)
    preemptions.note([one])
    assert len(preemptions) == 1 and not preemptions.is_new(one)


def test_a_request_that_ended_is_forgotten() -> None:
    preemptions = Preemptions()
    preemptions.note([request(1)])
    preemptions.forget("r")
    preemptions.forget("r")
    assert len(preemptions) == 0
