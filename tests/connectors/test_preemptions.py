"""Which preemptions a step made, and which a reset."""

from __future__ import annotations

from kit.rig import prompt
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from agentkv.connectors.preemptions import Preemptions


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
