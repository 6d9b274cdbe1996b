"""What native offloading stores step by step, and what it evicts: by hand, block by block."""

from __future__ import annotations

from sim.builders import BLOCK_TOKENS, small_profile

from agentkv.clock import ManualClock
from agentkv.sim.dram import Dram
from agentkv.sim.machine import Link, Machine, Request
from agentkv.sim.offloading import Offloading
from agentkv.sim.pool import Pool
from agentkv.sim.trace import TraceSession, TraceTurn
from agentkv.sim.workload import Hashes, SessionRun, plan_sessions


class _Offloaded:
    """One machine with so many blocks of DRAM; turns of whole blocks."""

    def __init__(self, dram_blocks: int) -> None:
        self.machine = Machine(
            profile=small_profile(),
            block_tokens=BLOCK_TOKENS,
            pool=Pool(1000),
            dram=Dram(dram_blocks),
            load_link=Link(1e9, 0.0),
            clock=ManualClock(),
        )
        self.dram = self.machine.dram
        self.offloading = Offloading(self.machine)
        self._hashes = Hashes()
        self._num_turns = 0

    def turn(self, num_blocks: int, *, gpu_hit: int = 0, dram_hit: int = 0) -> Request:
        session = TraceSession("s", (TraceTurn(num_blocks * BLOCK_TOKENS, 1),))
        (plan,) = plan_sessions([session], BLOCK_TOKENS, most_tokens=1e9)
        run = SessionRun("s", plan, self._hashes, 0)
        self._num_turns += 1
        request = Request(
            request_id=f"r{self._num_turns}",
            slot=0,
            run=run,
            number=0,
            planned=plan.turns[0],
            chain=run.chain(0),
            arrived_s=0.0,
            is_last=False,
            is_resume=False,
            gpu_hit=gpu_hit,
            dram_hit=dram_hit,
        )
        self.offloading.scheduled(request)
        return request

    def run(self, num_blocks: int) -> Request:
        request = self.turn(num_blocks)
        self.offloading.computing(request, num_blocks * BLOCK_TOKENS)
        self.offloading.finished(request)
        return request

    def held(self, request: Request) -> list[int]:
        return [place for place, block in enumerate(request.chain) if block in self.dram.blocks]


def test_a_chunk_is_stored_while_the_turn_computes() -> None:
    node = _Offloaded(20)
    request = node.turn(6)
    node.offloading.computing(request, 2 * BLOCK_TOKENS + 5)
    assert node.held(request) == [0, 1]
    node.offloading.computing(request, 6 * BLOCK_TOKENS)
    assert node.held(request) == [0, 1, 2, 3, 4, 5]


def test_a_turn_in_full_dram_pushes_out_the_tail_of_the_one_used_longest_ago() -> None:
    node = _Offloaded(10)
    one, two = node.run(5), node.run(5)
    three = node.turn(3)
    node.offloading.computing(three, 3 * BLOCK_TOKENS)
    assert node.held(one) == [0, 1]
    assert node.held(two) == [0, 1, 2, 3, 4]


def test_all_of_an_offer_or_nothing() -> None:
    node = _Offloaded(4)
    request = node.turn(6)
    node.offloading.computing(request, 6 * BLOCK_TOKENS)
    assert node.held(request) == []
    other = node.turn(6)
    node.offloading.computing(other, 4 * BLOCK_TOKENS)
    assert node.held(other) == [0, 1, 2, 3]


def test_what_is_being_loaded_stays() -> None:
    node = _Offloaded(6)
    one, two = node.run(3), node.run(3)
    node.machine.load(one.chain[:3])
    three = node.turn(3)
    node.offloading.computing(three, 3 * BLOCK_TOKENS)
    assert node.held(one) == [0, 1, 2] and node.held(two) == []
    four = node.turn(4)
    node.offloading.computing(four, 4 * BLOCK_TOKENS)
    assert node.held(four) == [], "only three can go while the load runs"
    event = node.machine.events.pop_due(1e9)
    assert event is not None
    event()
    node.offloading.computing(four, 4 * BLOCK_TOKENS)
    assert node.held(four) == [0, 1, 2, 3]


def test_a_turn_that_loaded_uses_and_offers_only_from_there_on() -> None:
    node = _Offloaded(20)
    request = node.turn(6, gpu_hit=2, dram_hit=2)
    node.offloading.computing(request, 6 * BLOCK_TOKENS)
    assert node.held(request) == [4, 5]
    # What it found in the pool alone is offered again.
    other = node.turn(6, gpu_hit=2)
    node.offloading.computing(other, 6 * BLOCK_TOKENS)
    assert node.held(other) == [0, 1, 2, 3, 4, 5]


def test_nothing_of_a_turn_without_return_is_stored() -> None:
    node = _Offloaded(20)
    request = node.turn(4)
    node.offloading.finished(request, is_stored=False)
    assert node.held(request) == []
