"""Public bug reports about what is worth a load, and when it should begin.

Each test is named after its report in `tests/BUG_REPORTS.md`.
"""

from __future__ import annotations

from collections.abc import Callable

from kit import Agent, Rig, blocks, prompt
from kit.away import SMALL, TOOL, crowd, outcomes, pushed_out
from kit.control import signal, tell
from kit.copies import FOREVER

from agentkv.cost_model import LinkSpeed
from agentkv.signals import Event

RigFactory = Callable[..., Rig]

# --- A85, A86, A87: what is worth a load, and when ---


def test_a85_a_prefetch_does_not_wait_for_stores(make_rig: RigFactory) -> None:
    """The priority of the copy queue is tested in `test_copy_order`; here: stores that wait
    leave room for a load, and DRAM can be evicted again when they are done."""
    rig = make_rig(**SMALL)
    agent = pushed_out(rig)
    rig.script.store_delay_steps = FOREVER
    for number in range(3):
        rig.add(f"busy{number}", prompt(200 + number, blocks(4)), max_tokens=1)
    rig.step(5)
    assert rig.copies.late_jobs(is_store=True)
    tell(rig, Event(event="resume", session_id="waiting"))
    rig.step(5)
    assert rig.cached_blocks(agent.context) >= 10
    rig.script.store_delay_steps = 0
    rig.copies.release()
    rig.settle()
    assert rig.primary._num_evictable_cache_chunks == len(rig.dram.chunks)


def test_a86_what_is_computed_faster_than_loaded_is_not_fetched(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=200, policy="always_swap")
    for number in range(40):  # enough steps for the prefill times to be believed
        rig.run(f"r{number}", prompt(300 + number, 40 + 8 * (number % 9)), tag={"last_turn": True})
    agent = pushed_out(rig)
    num_loads = rig.copies.num_loads
    rig.side._costs.load_link = LinkSpeed(1.0)  # a byte per second
    signal(rig, "resume", "waiting")
    rig.settle()
    assert agent.turn().dram_hit_tokens == 0
    assert rig.copies.num_loads == num_loads


def test_a86_a_part_is_fetched_if_only_that_fits(make_rig: RigFactory) -> None:
    rig = make_rig(**SMALL)
    agent = pushed_out(rig)
    rig.add("large", prompt(9, blocks(33)), max_tokens=60, tag={"last_turn": True})
    rig.step(2)
    depth = rig.cached_blocks(agent.context)
    tell(rig, Event(event="resume", session_id="waiting"))
    rig.step(3)
    assert depth < rig.cached_blocks(agent.context) < 10
    rig.settle()
    rig.check_answer("large")
    assert rig.results["large"].request.num_preemptions == 0


def test_a86_a_part_not_worth_a_load_is_fetched_when_there_is_room(make_rig: RigFactory) -> None:
    rig = make_rig(**{**SMALL, "extra": {"min_load_tokens": blocks(5)}})
    agent = pushed_out(rig)
    rig.add("large", prompt(9, blocks(34)), max_tokens=40, tag={"last_turn": True})
    rig.step(2)
    signal(rig, "resume", "waiting")
    rig.settle()
    rig.clock.advance(1.0)
    signal(rig, "resume", "waiting")
    rig.settle()
    assert rig.cached_blocks(agent.context) >= 10


class Ten:
    """A tool that takes 8 to 12 s, a load that takes 3, a pool full of later returns."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        for i in range(400):
            wait_s = 8.0 + 4.0 * (i % 41) / 40
            rig.controller._deps.predictor.observe("slowtool", None, wait_s)
        self.agent = Agent(rig, "waiting", 1, 10)
        self.agent.turn(tag={"tool": "slowtool"})
        self.began_s = rig.clock.monotonic_s()
        for seed, num_blocks in ((50, 18), (51, 18), (52, 36)):
            later = {"tool": "bash", "expected_wait_s": 5000.0}
            Agent(rig, f"later{seed}", seed, num_blocks).turn(tag=later)
        kv_bytes = rig.side._footprint.bytes_for(blocks(10))
        rig.side._costs.load_link = LinkSpeed(kv_bytes / 3.0)
        assert rig.cached_blocks(self.agent.context) < 5

    def wait_until(self, age_s: float) -> None:
        """Time passes, told as the engine asks for it."""
        while self.rig.clock.monotonic_s() < self.began_s + age_s:
            left_s = self.began_s + age_s - self.rig.clock.monotonic_s()
            message_id = tell(self.rig)
            self.rig.settle()
            due_s = self.rig.replies[message_id].tick_in_s
            self.rig.clock.advance(min(left_s, max(0.05, due_s if due_s is not None else 60.0)))
        tell(self.rig)
        self.rig.settle()


def test_a87_a_load_of_3_s_for_a_wait_of_10_s_begins_after_4_to_7_s(make_rig: RigFactory) -> None:
    ten = Ten(make_rig(**SMALL))
    ten.wait_until(4.4)
    assert ten.rig.counter("agentkv:prefetches") == 0
    ten.wait_until(7.0)  # later, the load would end after the tool
    assert ten.rig.counter("agentkv:prefetches", "predicted") == 1
    ten.wait_until(10.0)
    assert ten.agent.turn().dram_hit_tokens == 0


def test_a87_a_tool_that_returns_early_waits_for_no_more_than_its_own_load(
    make_rig: RigFactory,
) -> None:
    ten = Ten(make_rig(**SMALL))
    ten.wait_until(4.0)
    num_loads = ten.rig.copies.num_loads
    result = ten.agent.turn()
    assert result.dram_hit_tokens and ten.rig.copies.num_loads == num_loads + 1
    assert outcomes(ten.rig) == {}


def test_a87_a_tool_that_takes_a_minute_holds_nothing_that_others_need(
    make_rig: RigFactory,
) -> None:
    ten = Ten(make_rig(**SMALL))
    ten.wait_until(10.0)
    assert ten.rig.cached_blocks(ten.agent.context) >= 10
    needy = Agent(ten.rig, "needy", 70, 37)
    request_id = needy.arrive(tag={"tool": "bash", "expected_wait_s": 1.0})
    ten.rig.step(1)
    assert [request.request_id for request in ten.rig.scheduler.running] == [request_id]
    ten.rig.settle()
    ten.wait_until(60.0)
    assert ten.rig.counter("agentkv:prefetches") == 1, "once given up, it waits for its tool"
    ten.agent.turn()
    assert outcomes(ten.rig) == {"lost": 1}


# --- A88: superseded state ---


def test_a88_what_a_compaction_supersedes_goes_first_even_if_it_was_fetched(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(**SMALL)
    agent = pushed_out(rig)
    signal(rig, "resume", "waiting")
    rig.settle()
    old = list(agent.context)
    assert rig.cached_blocks(old) >= 10
    agent.context = [*old[: blocks(3)], *prompt(5, blocks(4))]
    agent.turn(tag=TOOL)
    rig.run("fill", prompt(9, blocks(8)), tag={"last_turn": True})
    assert rig.cached_blocks(old) == 3
    assert rig.cached_blocks(agent.context) >= 7


def test_a_tool_that_is_done_does_not_wait_for_a_prediction_that_found_no_room(
    make_rig: RigFactory,
) -> None:
    rig = make_rig(**SMALL)
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag={"tool": "bash", "expected_wait_s": 30.0})
    crowd(rig)
    others = [session.key.name for session, _ in rig.controller.pauses.kept()]
    for name in others:  # They are back soon: a prediction finds hardly any room.
        signal(rig, "resume", name)
    rig.clock.advance(29.0)
    tell(rig)
    rig.settle()
    began_s = rig.clock.monotonic_s()
    for name in others:
        signal(rig, "end", name)
    tell(rig)
    rig.settle()
    assert rig.cached_blocks(agent.context) < 10, "it rests"
    signal(rig, "resume", "waiting")
    rig.settle()
    assert rig.clock.monotonic_s() - began_s < 0.9, "the rest is not over by itself"
    assert rig.cached_blocks(agent.context) >= 10
