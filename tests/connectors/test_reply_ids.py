"""The id that a client sees in a reply, found again in the engine's own id of the request."""

from __future__ import annotations

import pytest
from kit import prompt
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.request import Request

from agentkv.connectors.translate import reply_id_of


def request(request_id: str) -> Request:
    return Request(request_id, prompt(1, 5), SamplingParams(max_tokens=1), None, arrival_time=0.0)


@pytest.mark.parametrize(
    ("engine_id", "reply_id"),
    [
        ("chatcmpl-9d2c61f0a8d54f6e-0a1b2c3d", "chatcmpl-9d2c61f0a8d54f6e"),
        ("0_chatcmpl-9d2c61f0a8d54f6e-0a1b2c3d", "chatcmpl-9d2c61f0a8d54f6e"),
        ("13_chatcmpl-abc-0a1b2c3d", "chatcmpl-abc"),
        ("cmpl-9d2c61f0a8d54f6e-0-0a1b2c3d", "cmpl-9d2c61f0a8d54f6e"),
        ("2_cmpl-abc-17-0a1b2c3d", "cmpl-abc"),
        ("chatcmpl-run-7-0a1b2c3d", "chatcmpl-run-7"),
        ("chatcmpl-deadbeef-0a1b2c3d", "chatcmpl-deadbeef"),
        ("17", "17"),
        ("", ""),
    ],
)
def test_what_vllm_added_is_taken_away(engine_id: str, reply_id: str) -> None:
    assert reply_id_of(request(engine_id)) == reply_id


@pytest.mark.parametrize("external", ["chatcmpl-abc", "cmpl-abc-3", "chatcmpl-run-7"])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_the_ids_are_made_by_vllm_itself(external: str, num_samples: int) -> None:
    """With vLLM's own code for the random digits and for the samples of a request."""
    core = EngineCoreRequest(
        request_id=external,
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=SamplingParams(n=num_samples),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    InputProcessor.assign_request_id(core)
    ids = [core.request_id]
    if num_samples > 1:
        parent = ParentRequest(core)
        ids = [parent.get_child_info(index)[0] for index in range(num_samples)]
    assert len(set(ids)) == num_samples
    expected = "cmpl-abc" if external.startswith("cmpl-") else external
    assert {reply_id_of(request(each)) for each in ids} == {expected}


@pytest.mark.parametrize("engine_id", ["resp_abc_0-0a1b2c3d", "resp_abc_12-0a1b2c3d"])
def test_all_parts_of_a_response_have_its_id(engine_id: str) -> None:
    assert reply_id_of(request(engine_id)) == "resp_abc"
