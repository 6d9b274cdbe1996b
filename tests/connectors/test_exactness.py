"""Every element a turn reads is its own prefix's, whatever happened to the session meanwhile.

Small pools and tiers force every path: the KV was held, swapped out and loaded, or recomputed. The
runner checks each element before it decodes; the answer is checked at the end.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig, blocks, prompt

RigFactory = Callable[..., Rig]
POLICIES = ["always_hold", "always_swap", "always_recompute", "break_even"]
SHAPES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunked": {"max_step_tokens": 50},
    "hybrid": {"is_hybrid": True, "pool_blocks": 50, "dram_blocks": 90},
    "hybrid chunked": {
        "is_hybrid": True,
        "pool_blocks": 50,
        "dram_blocks": 90,
        "max_step_tokens": 50,
    },
    "async": {"is_async": True, "max_step_tokens": 80},
    "large chunks": {"extra": {"offloading": {"blocks_per_chunk": 3}}},
}


def _work(rig: Rig, num_rounds: int, seed: int) -> None:
    """Six agents, three at a time; tools return after very different times."""
    rng = random.Random(seed)
    agents = [Agent(rig, f"agent{i}", seed * 10 + i, rng.randint(2, 6)) for i in range(6)]
    for _ in range(num_rounds):
        ids = [
            agent.arrive(
                tool_tokens=rng.randint(1, 40),
                max_tokens=rng.randint(1, 20),
                tag={"tool": "bash", "expected_wait_s": rng.choice([0.1, 5, 600])},
            )
            for agent in rng.sample(agents, 3)
        ]
        rig.step_until(lambda ids=ids: all(rig.results[i].is_finished for i in ids))
        for request_id in ids:
            rig.check_answer(request_id)
        rig.clock.advance(rng.choice([0.1, 5, 600]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_element_is_right_under_every_policy(
    make_rig: RigFactory, policy: str, shape: str
) -> None:
    fields = {"pool_blocks": 34, "dram_blocks": 42, "policy": policy, **SHAPES[shape]}
    rig = make_rig(**fields)
    rig.script.store_delay_steps = rig.script.load_delay_steps = 2
    _work(rig, num_rounds=12, seed=POLICIES.index(policy) * 10 + list(SHAPES).index(shape) + 1)
    tiers = {tier for (tier,) in rig.counters["agentkv:resumes"]}
    assert tiers & {"dram", "mixed"}, "some turn was loaded"
    assert tiers & {"gpu", "mixed"}, "some turn found its KV in the pool"
    assert rig.counter("agentkv:resume_tokens", "recomputed") > 0, "and some was computed again"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policys_action_is_what_happens_under_pressure(
    make_rig: RigFactory, policy: str
) -> None:
    rig = make_rig(pool_blocks=20, policy=policy, extra={"prefetch": {"enabled": False}})
    agent = Agent(rig, "agent", 1, 8)
    agent.turn(tag={"expected_wait_s": 600.0})
    rig.run("needy", prompt(2, blocks(19)), tag={"last_turn": True})
    assert rig.cached_blocks(agent.context) == 0
    reason = "recompute" if policy == "always_recompute" else "swap"
    assert rig.counter("agentkv:given_up_blocks", reason) >= 8 - 1
    resumed = agent.turn()
    assert resumed.dram_hit_tokens == blocks(8), "DRAM had room to spare under every policy"


def test_recompute_gives_up_the_dram_copy_before_any_other(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=20, dram_blocks=18, policy="always_recompute")
    older = Agent(rig, "older", 1, 4)
    older.turn()
    agent = Agent(rig, "agent", 2, 8)
    agent.turn(tag={"expected_wait_s": 600.0})
    rig.add("needy", prompt(3, blocks(10)), tag={"last_turn": True}, max_tokens=1)
    rig.settle()
    assert rig.dram_blocks(older.context) == 4
    Agent(rig, "new", 4, 8).turn()
    assert rig.dram_blocks(agent.context) < 8
    assert rig.dram_blocks(older.context) == 4
