"""A load that brings back wrong bytes is refused, computed again, and never offered again."""

from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, CanaryError, Rig, blocks, prompt
from vllm.v1.kv_offload.base import ReqContext

from agentkv.connectors import host_copies

RigFactory = Callable[..., Rig]
SHAPES = pytest.mark.parametrize(
    "fields", [{}, {"is_hybrid": True}, {"is_async": True}, {"max_step_tokens": 40}]
)


def _swapped_out(rig: Rig, num_blocks: float = 8.5) -> Agent:
    agent = Agent(rig, "agent", 1, num_blocks)
    agent.turn()
    rig.drop_gpu_cache()
    return agent


@SHAPES
@pytest.mark.parametrize("block", [0, 4, 7])
def test_one_flipped_byte_is_refused_and_recomputed(
    make_rig: RigFactory, fields: dict[str, Any], block: int
) -> None:
    rig = make_rig(**fields)
    agent = _swapped_out(rig)
    before = list(agent.context)  # eight full blocks; the hybrid model's window begins in the sixth
    rig.flip_dram_byte(before, block)
    request_id = agent.arrive()
    rig.step_until(lambda: rig.counter("agentkv:load_failures") > 0)
    assert rig.dram_blocks(before) == 7, "the damaged block is gone from DRAM"
    rig.settle()
    rig.check_answer(request_id)
    assert rig.counter("agentkv:load_failures", "checksum") == 1
    rig.drop_gpu_cache()
    agent.turn()
    assert rig.counter("agentkv:load_failures") == 1, "what was recomputed is right in DRAM too"


@pytest.mark.parametrize("group", [0, 1])
def test_a_flipped_byte_of_either_group_of_a_hybrid_model_is_refused(
    make_rig: RigFactory, group: int
) -> None:
    rig = make_rig(is_hybrid=True)
    agent = _swapped_out(rig)
    rig.flip_dram_byte(agent.context, 7, group=group)
    agent.turn()
    assert rig.counter("agentkv:load_failures") == 1


def test_a_damaged_context_of_half_the_pool_does_not_wait_for_itself(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(is_hybrid=True, pool_blocks=60, dram_blocks=90)
    agent = Agent(rig, "agent", 1, 15.5)
    agent.turn()
    agent.turn(tool_tokens=blocks(9))
    rig.drop_gpu_cache()
    rig.flip_dram_byte(agent.context, 20)  # Up to the first turn's end there is another hit.
    agent.turn()
    assert rig.counter("agentkv:load_failures") == 1


@SHAPES
def test_a_whole_damaged_prefix_is_recomputed(make_rig: RigFactory, fields: dict[str, Any]) -> None:
    rig = make_rig(**fields)
    agent = _swapped_out(rig)
    rig.script.is_failing = True
    request_id = agent.arrive()
    rig.settle()
    rig.check_answer(request_id)
    assert rig.counter("agentkv:load_failures") >= 8


def test_the_good_part_before_the_damage_is_kept(make_rig: RigFactory) -> None:
    rig = make_rig()
    agent = _swapped_out(rig)
    rig.flip_dram_byte(agent.context, 5)
    rig.runner.num_computed_tokens = 0
    agent.turn(tool_tokens=5, max_tokens=1)
    assert rig.runner.num_computed_tokens == len(agent.context) - blocks(5)


@SHAPES
def test_turns_that_share_a_damaged_block_are_all_right(
    make_rig: RigFactory, fields: dict[str, Any]
) -> None:
    rig = make_rig(**fields)
    shared = prompt(1, blocks(5))
    rig.run("first", shared)
    rig.drop_gpu_cache()
    rig.flip_dram_byte(shared, 2)
    rig.script.load_delay_steps = 3
    for i in range(4):
        rig.add(f"sharer{i}", [*shared, *prompt(10 + i, 20)])
    rig.settle()
    for i in range(4):
        rig.check_answer(f"sharer{i}")


def test_a_damaged_block_that_another_load_reads_is_dropped_after_it(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    tokens = prompt(1, blocks(5))
    rig.run("first", tokens)
    rig.drop_gpu_cache()
    rig.flip_dram_byte(tokens, 2)
    key = rig.side.layout.keys([(3, rig.hashes(tokens)[2])])[0]
    context = ReqContext(req_id="reader")
    rig.add("second", [*tokens, 1], max_tokens=30)
    rig.primary.prepare_load([key], context)
    rig.step_until(lambda: rig.counter("agentkv:load_failures") > 0)
    rig.step()
    assert rig.dram.get(key) is not None, "still being read"
    rig.primary.complete_load([key], context)
    rig.step()
    assert rig.dram.get(key) is None
    rig.settle()
    rig.check_answer("second")


def test_an_aborted_turn_with_a_damaged_load_leaves_nothing(make_rig: RigFactory) -> None:
    for fields in ({}, {"is_hybrid": True}):
        rig = make_rig(**fields)
        agent = _swapped_out(rig)
        rig.flip_dram_byte(agent.context, 3)
        rig.script.load_delay_steps = 3
        request_id = agent.arrive()
        rig.step(2)
        rig.abort(request_id)
        rig.settle()


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_without_the_checksum_the_canary_finds_the_flipped_byte(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch, is_hybrid: bool
) -> None:
    """The control of the control: the kit itself would notice what the checksum refuses."""
    rig = make_rig(is_hybrid=is_hybrid)
    agent = _swapped_out(rig)
    rig.flip_dram_byte(agent.context, 7)
    monkeypatch.setattr(host_copies, "checksum", lambda _: 1)
    rig.copies.copies._sums[:] = 1
    agent.arrive()
    rig.is_spoilt = True
    with pytest.raises(CanaryError, match=r"1 wrong elements"):
        rig.settle()
