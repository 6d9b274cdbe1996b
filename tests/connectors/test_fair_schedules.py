"""Random steps of agents that are held back and reordered: all finish, in bounded time.

A state machine on vLLM's real scheduler. `AGENTKV_FAIR_STEPS=10000` takes so many steps in all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kit import Agent, Rig, RigConfig, blocks, prompt
from kit.limits import limit_programs

NUM_AGENTS = 5
POOL_BLOCKS = 44
MAX_CONTEXT_TOKENS = 200
MAX_WAIT_S = 1.0
# A turn takes some dozens of steps of 10 ms, and those before it as well.
BOUND_STEPS = 900
RUN_STEPS = 30
NUM_STEPS = int(os.environ.get("AGENTKV_FAIR_STEPS", "750"))


class FairSchedules(RuleBasedStateMachine):
    """Five agents in a pool that takes two of them; programs are limited to one or two."""

    rig: Rig

    @initialize(
        is_async=st.booleans(),
        is_ordered=st.booleans(),
        is_hybrid=st.booleans(),
        dram_blocks=st.sampled_from([12, 200]),
        max_num_seqs=st.sampled_from([1, 3]),
        limit_blocks=st.sampled_from([1, 14, 1000]),
    )
    def begin(self, *, limit_blocks: int, **shape: Any) -> None:
        extra = {"admission": {"max_wait_s": MAX_WAIT_S, "max_overtaken": 2}}
        self.rig = Rig(RigConfig(pool_blocks=POOL_BLOCKS, extra=extra, **shape))
        limit_programs(self.rig, blocks(limit_blocks))
        self.agents = [Agent(self.rig, f"agent{i}", i + 1, 2 + i / 2) for i in range(NUM_AGENTS)]
        self.underway: dict[int, str] = {}
        self.since: dict[str, int] = {}
        self.num_asked = 0

    def _ask(self, request_id: str) -> None:
        self.since[request_id] = self.rig.num_steps

    @rule(index=st.integers(0, NUM_AGENTS - 1), size=st.integers(1, 40), is_last=st.booleans())
    def turn(self, index: int, size: int, is_last: bool) -> None:
        before = self.underway.get(index)
        if before is not None and not self.rig.results[before].is_finished:
            return
        agent = self.agents[index]
        if before is not None and self.rig.results[before].finish_reason == "abort":
            agent.context = agent.context[:32]
        if len(agent.context) > MAX_CONTEXT_TOKENS - 80:
            agent.context = agent.context[:32]
        tag = {"last_turn": True} if is_last else None
        self.underway[index] = agent.arrive(tool_tokens=size, max_tokens=size, tag=tag)
        self._ask(self.underway[index])

    @rule(size=st.integers(20, 200))
    def one_shot(self, size: int) -> None:
        """Somebody who never came before and never comes again."""
        waiting = sum(not self.rig.results[i].is_finished for i in self.since)
        if waiting < 2 * NUM_AGENTS:
            self.num_asked += 1
            self.rig.add(f"once{self.num_asked}", prompt(1000 + self.num_asked, size))
            self._ask(f"once{self.num_asked}")

    @precondition(lambda self: self.underway)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.underway.values())))
        if not self.rig.results[request_id].is_finished:
            self.rig.abort(request_id)

    @rule(num_steps=st.integers(1, 40))
    def step(self, num_steps: int) -> None:
        self.rig.step(num_steps)

    @rule(seconds=st.sampled_from([0.1, 5.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)

    @invariant()
    def nobody_waits_beyond_the_bound(self) -> None:
        for request_id, step in list(self.since.items()) if hasattr(self, "since") else ():
            if self.rig.results[request_id].is_finished:
                del self.since[request_id]
                if self.rig.results[request_id].finish_reason != "abort":
                    self.rig.check_answer(request_id)
            else:
                assert self.rig.num_steps - step < BOUND_STEPS, self.rig.describe()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.rig.clean()
            self.nobody_waits_beyond_the_bound()
            assert not self.since
        finally:
            self.rig.close()


@pytest.fixture(scope="module", autouse=True)
def small_kv_space() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


TestFairSchedules = FairSchedules.TestCase
TestFairSchedules.settings = settings(
    max_examples=max(1, NUM_STEPS // RUN_STEPS),
    stateful_step_count=RUN_STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
