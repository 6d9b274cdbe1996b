"""Random arrivals, aborts, ends, resets and late copies: all that fits finishes, nothing leaks."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kit import Agent, Rig, RigConfig, prompt
from kit.control import tell
from kit.kv_events import check, listen

from agentkv.signals import Event

MAX_CONTEXT_TOKENS = 200  # two such turns fit into the smallest pool

Operation = tuple[str, Any]
AGENT = st.integers(0, 4)
# Of an agent, of a session that nobody knows, of another tenant's; with numbers that go back.
SIGNAL = st.tuples(
    st.sampled_from(["agent0", "agent1", "agent3", "nobody", "inferred-1"]),
    st.sampled_from(["pause", "resume", "heartbeat", "end"]),
    st.sampled_from([None, None, 0, 1, 2]),
    st.sampled_from(["", "", "", "other tenant"]),
    st.sampled_from([None, 0.5, 100.0]),
)
operations = st.one_of(
    st.tuples(st.just("turn"), st.tuples(AGENT, st.integers(1, 40), st.integers(1, 20))),
    st.tuples(st.just("turn"), st.tuples(AGENT, st.integers(1, 40), st.integers(1, 20))),
    st.tuples(st.just("last"), st.tuples(AGENT, st.integers(1, 40), st.integers(1, 5))),
    st.tuples(st.just("rewrite"), st.tuples(AGENT, st.integers(0, 3))),
    st.tuples(st.just("overlap"), st.tuples(AGENT, st.integers(1, 40))),
    st.tuples(st.just("abort"), st.tuples(AGENT, st.booleans())),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 3.0, 700.0])),
    st.tuples(st.just("reset"), st.tuples(st.booleans(), st.booleans())),
    st.tuples(st.just("delay"), st.tuples(st.integers(0, 4), st.integers(0, 4))),
    st.tuples(st.just("damage"), st.integers(0, 30)),
    st.tuples(st.just("signal"), SIGNAL),
    st.tuples(st.just("signal"), SIGNAL),
    st.tuples(st.just("tick"), st.none()),
)
shapes = st.fixed_dictionaries(
    {
        "pool_blocks": st.sampled_from([30, 44]),
        "dram_blocks": st.sampled_from([12, 40, 200]),
        "max_num_seqs": st.sampled_from([1, 3]),
        "max_step_tokens": st.sampled_from([48, 2048]),
        "scheduling": st.sampled_from(["fcfs", "priority"]),
        "is_hybrid": st.booleans(),
        "is_async": st.booleans(),
        "publishes_events": st.booleans(),
        "policy": st.sampled_from(["break_even", "always_hold", "always_swap", "always_recompute"]),
        "extra": st.sampled_from(
            [
                {"sessions": {"abandon_after_s": 60}},
                {"min_load_tokens": 48, "sessions": {"max_sessions": 2}},
                {"protect_arrived_turns": False, "hold": {"lease_s": 2}},
            ]
        ),
    }
)


@dataclass
class _World:
    """One rig and five agents: three share a prefix, one of them and another have no name."""

    rig: Rig
    agents: list[Agent] = field(init=False)
    underway: dict[int, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shared = prompt(99, 40)
        self.agents = [
            Agent(
                self.rig,
                f"agent{i}",
                i + 1,
                2 + i / 2,
                shared=shared if i < 3 else (),
                is_anonymous=i in (2, 4),
            )
            for i in range(5)
        ]

    def do(self, operation: Operation) -> None:
        name, argument = operation
        getattr(self, name)(argument)

    def turn(self, argument: tuple[int, int, int], **kwargs: Any) -> None:
        index, tool_tokens, max_tokens = argument
        agent = self.agents[index]
        last = self.underway.pop(index, None)
        if last is not None and not self.rig.results[last].is_finished:
            self.underway[index] = last
            return
        if len(agent.context) > MAX_CONTEXT_TOKENS - 80:
            agent.context = agent.context[:32]
        self.underway[index] = agent.arrive(
            tool_tokens=tool_tokens, max_tokens=max_tokens, priority=index, **kwargs
        )

    def last(self, argument: tuple[int, int, int]) -> None:
        self.turn(argument, tag={"last_turn": True})

    def rewrite(self, argument: tuple[int, int]) -> None:
        index, kept_blocks = argument
        self.agents[index].context = self.agents[index].context[: 16 * kept_blocks + 5]

    def overlap(self, argument: tuple[int, int]) -> None:
        """Another turn of a session that may have one under way."""
        index, num_tokens = argument
        agent = self.agents[index]
        tokens = [*agent.context[:120], *prompt(len(self.rig.results), num_tokens)]
        self.rig.add(f"overlap{len(self.rig.results)}", tokens, session=agent.session)

    def abort(self, argument: tuple[int, bool]) -> None:
        """Between two steps, or after the next one was executed and before it is processed."""
        index, is_mid_step = argument
        request_id = self.underway.get(index)
        if request_id is None or self.rig.results[request_id].is_finished:
            return
        if is_mid_step:
            self.rig.before_update = lambda: self._abort_unless_finished(request_id)
            self.rig.step()
        else:
            self.rig.abort(request_id)

    def _abort_unless_finished(self, request_id: str) -> None:
        if not self.rig.results[request_id].is_finished:
            self.rig.abort(request_id)

    def step(self, num_steps: int) -> None:
        self.rig.step(num_steps)

    def settle(self, _: None) -> None:
        self.rig.settle()

    def wait(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)

    def delay(self, argument: tuple[int, int]) -> None:
        self.rig.script.store_delay_steps, self.rig.script.load_delay_steps = argument

    def reset(self, argument: tuple[bool, bool]) -> None:
        is_forced, with_connector = argument
        if is_forced:
            self.rig.drain()
        if self.rig.scheduler.kv_holding_waiting:
            is_forced = False  # vLLM refuses this during a load
        if is_forced and any(r.is_finished() for r in self.rig.scheduler.requests.values()):
            is_forced = False  # an aborted turn whose load still runs
        self.rig.scheduler.reset_prefix_cache(
            reset_running_requests=is_forced, reset_connector=with_connector
        )

    def signal(self, argument: tuple[str, str, int | None, str, float | None]) -> None:
        session, event, seq, scope, expected_wait_s = argument
        fields = {"event": event, "session_id": session, "seq": seq}
        named = Event.model_validate({**fields, "expected_wait_s": expected_wait_s})
        self.told.append(tell(self.rig, named, scope=scope))

    def tick(self, _: None) -> None:
        self.told.append(tell(self.rig))

    def damage(self, index: int) -> None:
        """Flips a byte of some stored block that nothing reads or writes just now."""
        chunks = [chunk for chunk in self.rig.dram.chunks.values() if chunk.ref_cnt == 0]
        if chunks:
            self.rig.copies.copies._dram[0][chunks[index % len(chunks)].chunk_id, index] ^= 64


@pytest.fixture(scope="module", autouse=True)
def small_kv_space() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        yield


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(shape=shapes, script=st.lists(operations, min_size=5, max_size=30))
def test_any_schedule_finishes_right_and_leaves_nothing(
    shape: dict[str, Any], script: list[Operation]
) -> None:
    rig = Rig(RigConfig(**shape))
    try:
        index = listen(rig)
        world = _World(rig)
        for operation in script:
            world.do(operation)
        rig.clean()
        for request_id, result in rig.results.items():
            if result.finish_reason != "abort":
                rig.check_answer(request_id)
        if rig.config.publishes_events:
            check(rig, index)
        assert set(world.told) <= rig.replies.keys(), "every message is answered"
    finally:
        rig.close()
