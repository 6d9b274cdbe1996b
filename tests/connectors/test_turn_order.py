"""Our scheduler: whose KV is there goes first, nobody is overtaken for ever, a stall is broken."""

from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks, prompt

from agentkv.connectors.assembly import _drop
from agentkv.connectors.turn_order import STALLED_STEPS

RigFactory = Callable[..., Rig]


def _order_of_starts(rig: Rig, *request_ids: str) -> list[str]:
    started: list[str] = []
    for _ in range(600):
        if all(rig.results[i].is_finished for i in request_ids):
            break
        rig.step()
        new = [i for i in request_ids if rig.results[i].tokens and i not in started]
        started += new
    for request_id in request_ids:
        rig.check_answer(request_id)
    return started


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_resident_before_reload_before_recompute_before_new(
    make_rig: RigFactory, is_async: bool, is_ordered: bool
) -> None:
    rig = make_rig(is_async=is_async, is_ordered=is_ordered, max_num_seqs=1)
    names = ["lost", "swapped", "here"]
    agents = {name: Agent(rig, name, seed, 6) for seed, name in enumerate(names)}
    for name in names[:2]:
        agents[name].turn()
    rig.drop_gpu_cache()
    for key in rig.side.layout.keys(enumerate(rig.hashes(agents["lost"].context), start=1)):
        _drop(rig.primary, key)
    agents["here"].turn()
    rig.add("busy", prompt(50, blocks(2)), max_tokens=12)
    rig.step(3)
    rig.add("new", prompt(60, blocks(3)))
    ids = ["new", *(agents[name].arrive() for name in names)]
    rig.step(1)
    waiting = [request.request_id for request in rig.scheduler.waiting]
    assert waiting == (ids[::-1] if is_ordered else ids)
    _order_of_starts(rig, *ids)


def test_a_new_program_is_overtaken_a_bounded_number_of_times(make_rig: RigFactory) -> None:
    rig = make_rig(is_ordered=True, max_num_seqs=1, extra={"admission": {"max_overtaken": 3}})
    agents = [Agent(rig, f"agent{i}", i, 3) for i in range(2)]
    for agent in agents:
        agent.turn()
    rig.add("busy", prompt(50, blocks(2)), max_tokens=4)
    rig.step(2)
    rig.add("new", prompt(60, blocks(3)))
    finished_before = 0
    waiting = {agent.name: agent.arrive(tool_tokens=2) for agent in agents}
    for _ in range(300):
        if rig.results["new"].tokens:
            break
        for agent in agents:
            if rig.results[waiting[agent.name]].is_finished:
                finished_before += 1
                waiting[agent.name] = agent.arrive(tool_tokens=2)
        rig.step()
    assert rig.results["new"].tokens, "it never came"
    assert 2 <= finished_before <= 5


def test_a_stall_drops_every_hold_and_says_so_once(
    make_rig: RigFactory, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(is_ordered=True, pool_blocks=30, policy="always_hold")
    agent = Agent(rig, "held", 1, 10)
    agent.turn()
    rig.add("huge", prompt(2, blocks(40)))
    rig.side.room.make = lambda order: None  # nobody makes room as usual
    order = rig.scheduler.turn_order
    with caplog.at_level("WARNING", logger="vllm.agentkv"):
        rig.step(STALLED_STEPS - 1)
        assert order._num_stalled < STALLED_STEPS
        rig.step(STALLED_STEPS)
    (said,) = [r.getMessage() for r in caplog.records if "no token for" in r.getMessage()]
    assert "1 turns wait" in said
    rig.abort("huge")
    rig.settle()


def test_pauses_give_up_before_a_running_turn_is_preempted(make_rig: RigFactory) -> None:
    rig = make_rig(is_ordered=True, pool_blocks=40, policy="always_hold")
    agents = [Agent(rig, f"held{i}", i, 6) for i in range(4)]
    for agent in agents:
        agent.turn()
    rig.run("grows", prompt(9, blocks(10)), max_tokens=blocks(20))
    assert rig.results["grows"].request.num_preemptions == 0
    assert rig.counter("agentkv:given_up_blocks") > 0


def test_queues_by_priority_are_left_alone(make_rig: RigFactory) -> None:
    rig = make_rig(is_ordered=True, scheduling="priority", max_num_seqs=1)
    agent = Agent(rig, "agent", 1, 3)
    agent.turn()
    rig.add("busy", prompt(50, blocks(2)), max_tokens=6)
    rig.step(2)
    rig.add("urgent", prompt(60, blocks(3)), priority=0)
    returning = agent.arrive(priority=5)
    assert _order_of_starts(rig, "urgent", returning) == ["urgent", returning]
