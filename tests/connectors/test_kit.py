"""The kit itself: a wrong byte, a stale read or a leak must not get past it."""

from collections.abc import Callable

import numpy as np
import pytest
from kit import Agent, CanaryError, Kind, Leak, Rig, answer, blocks, prompt

RigFactory = Callable[..., Rig]
EVERY_ENGINE = pytest.mark.parametrize(
    "fields",
    [{}, {"is_hybrid": True}, {"is_async": True}, {"kind": Kind.LRU}, {"kind": Kind.NONE}],
    ids=["agentkv", "hybrid", "async", "lru", "off"],
)


@EVERY_ENGINE
def test_three_turns_of_an_agent_are_answered_right(
    make_rig: RigFactory, fields: dict[str, object]
) -> None:
    rig = make_rig(**fields)
    agent = Agent(rig, "agent", seed=1, num_blocks=6)
    agent.turn()
    assert agent.turn().gpu_hit_tokens == blocks(6)
    rig.drop_gpu_cache()
    last = agent.turn()
    assert last.gpu_hit_tokens == 0
    assert bool(last.dram_hit_tokens) is (rig.config.kind is not Kind.NONE)


@pytest.mark.parametrize("is_hybrid", [False, True])
def test_one_wrong_element_in_the_pool_is_noticed(make_rig: RigFactory, is_hybrid: bool) -> None:
    rig = make_rig(is_hybrid=is_hybrid)
    agent = Agent(rig, "agent", seed=1, num_blocks=4)
    agent.turn()
    (block,) = rig.pool.get_cached_block(rig.hashes(agent.context)[3], [0])
    rig.memory.layers[1].pages[block.block_id, 15, 31] += 1
    agent.arrive()
    rig.is_spoilt = True
    with pytest.raises(CanaryError, match=r"1 wrong elements"):
        rig.settle()


def test_a_wrong_element_changes_the_answer_when_nobody_checks(make_rig: RigFactory) -> None:
    rig = make_rig()
    agent = Agent(rig, "agent", seed=1, num_blocks=4)
    agent.turn()
    (block,) = rig.pool.get_cached_block(rig.hashes(agent.context)[0], [0])
    rig.memory.layers[0].pages[block.block_id, 0, 0] += 1
    rig.runner.is_checking = False
    request_id = agent.arrive()
    rig.settle()
    with pytest.raises(AssertionError, match="wrong answer"):
        rig.check_answer(request_id)


def test_a_block_handed_out_again_holds_nothing_readable(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=8)
    rig.run("old", prompt(1, blocks(6)))
    pages = rig.memory.layers[0].pages
    rig.add("new", prompt(2, blocks(6)), max_tokens=1)
    output = rig.scheduler.schedule()
    fresh = {i for ids in output.scheduled_new_reqs[0].block_ids for i in ids}
    assert not np.isnan(pages[sorted(fresh)]).all()
    rig.memory.poison(fresh)
    assert np.isnan(pages[sorted(fresh)]).all()
    rig._process(output, rig.runner.execute(output, set()))


def test_the_answer_depends_on_every_token_and_its_place() -> None:
    tokens = prompt(1, 40)
    swapped = [tokens[1], tokens[0], *tokens[2:]]
    answers = {tuple(answer(t, 2)) for t in (tokens, swapped, tokens[:-1], tokens[1:])}
    assert len(answers) == 4


def test_a_kept_block_reference_is_a_leak(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.run("r", prompt(1, 40))
    block = rig.pool.blocks[3]
    rig.pool.touch([block])
    with pytest.raises(Leak, match=r"63 of 64 blocks free; blocks with references: \[3\]"):
        rig.clean()
    rig.pool.free_blocks([block])


def test_a_kept_request_id_is_a_leak_however_deep_it_lies(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.run("r", prompt(1, 40))
    rig.controller.sessions.forgotten = {"x": [{"deep": ("r",)}]}
    with pytest.raises(Leak, match=r"request id 'r' left in .*controller.sessions.forgotten\[x\]"):
        rig.clean()
    del rig.controller.sessions.forgotten


def test_a_late_copy_moves_its_bytes_late(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.script.store_delay_steps = 10
    rig.add("r", prompt(1, blocks(4)), max_tokens=1)
    rig.step(4)
    assert rig.copies.num_late == 1 and rig.dram_blocks(prompt(1, blocks(4))) == 0
    rig.settle()
    assert rig.copies.num_late == 0 and rig.dram_blocks(prompt(1, blocks(4))) == 4
