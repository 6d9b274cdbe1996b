"""Seconds of single turns against sums by hand, and the jump over decode steps."""

import pytest
from sim.builders import BLOCK_TOKENS, small_profile

from agentkv.clock import ManualClock
from agentkv.sim.dram import Dram
from agentkv.sim.engine import Engine
from agentkv.sim.keeper import NativeKeeper
from agentkv.sim.machine import Link, Machine, Request
from agentkv.sim.pool import Pool
from agentkv.sim.tally import Tally
from agentkv.sim.trace import TraceSession, TraceTurn
from agentkv.sim.workload import Hashes, SessionRun, plan_sessions

PROFILE = small_profile()


class _Node:
    """An engine that serves turns of one prompt each."""

    def __init__(self, *, pool_tokens: int = 60_000, dram_blocks: int = 0) -> None:
        self.machine = Machine(
            profile=PROFILE,
            block_tokens=BLOCK_TOKENS,
            pool=Pool(pool_tokens // BLOCK_TOKENS),
            dram=Dram(dram_blocks),
            load_link=Link(PROFILE.load_bytes_per_s, 0.0),
            clock=ManualClock(),
        )
        self.finished: list[tuple[Request, float]] = []
        self.engine = Engine(
            self.machine, NativeKeeper(self.machine), Tally(self.machine, 0.0), self._note
        )
        self._hashes = Hashes()
        self._num_runs = 0

    def _note(self, request: Request) -> None:
        self.finished.append((request, self.machine.now_s))

    def run(self, *turns: tuple[int, int]) -> SessionRun:
        """A session of turns of so many prompt and answer tokens, each extending the last."""
        traced = []
        for number, (prompt, output) in enumerate(turns):
            known = sum(traced[-1:] and (traced[-1].prompt_tokens, traced[-1].output_tokens))
            traced.append(TraceTurn(prompt, output, number - 1, known))
        self._num_runs += 1
        session = TraceSession(f"s{self._num_runs}", tuple(traced))
        (plan,) = plan_sessions([session], BLOCK_TOKENS, most_tokens=1e9)
        return SessionRun(session.name, plan, self._hashes, 0)

    def send(self, run: SessionRun, number: int = 0, at_s: float = 0.0) -> None:
        def arrive() -> None:
            request = Request(
                request_id=f"{run.name}/{number}",
                slot=0,
                run=run,
                number=number,
                planned=run.plan.turns[number],
                chain=run.chain(number),
                arrived_s=self.machine.now_s,
                is_last=False,
                is_resume=number > 0,
            )
            self.engine.arrive(request, 0.0)

        self.machine.events.push(at_s, arrive)


def _prefill_s(start: int, end: int) -> float:
    size = end - start
    return (size + size * (start + size / 2) / 30_000) / 20_000


def test_a_turn_alone_takes_prefill_in_chunks_and_a_step_a_token() -> None:
    node = _Node()
    node.send(node.run((3000, 11)))
    node.engine.run(100.0)
    ((request, at_s),) = node.finished
    first_s = _prefill_s(0, 2048) + _prefill_s(2048, 3000)
    assert request.first_token_s == pytest.approx(first_s)
    steps_s = sum(0.01 + (3001 + i) * 1e-7 for i in range(10))
    assert at_s == pytest.approx(first_s + steps_s)


def test_steps_jumped_over_take_as_long_as_steps_one_by_one() -> None:
    jumped, stepped = _Node(), _Node()
    for node in (jumped, stepped):
        for number in range(3):
            node.send(node.run((800 + number, 40 + 7 * number)), at_s=0.013 * number)
    for number in range(400):
        stepped.machine.events.push(number * 0.003, lambda: None)
    for node in (jumped, stepped):
        node.engine.run(100.0)
    for (one, one_s), (other, other_s) in zip(jumped.finished, stepped.finished, strict=True):
        assert one.request_id == other.request_id
        assert one_s == pytest.approx(other_s, abs=1e-9)


def test_the_head_of_the_queue_blocks_those_behind_it() -> None:
    node = _Node(pool_tokens=4096)
    large, too_large, small = node.run((2500, 200)), node.run((2500, 5)), node.run((300, 5))
    for number, run in enumerate((large, too_large, small)):
        node.send(run, at_s=1e-4 * number)
    node.engine.run(100.0)
    names = [request.run.name for request, _ in node.finished]
    assert names[0] == large.name
    (_, first_s) = node.finished[0]
    assert all(request.admitted_s >= first_s for request, _ in node.finished[1:])


def test_what_the_pool_lost_is_loaded_from_dram_beside_the_steps() -> None:
    node = _Node(pool_tokens=4096, dram_blocks=1000)
    one, other = node.run((1280, 2), (1700, 2)), node.run((3900, 2))
    node.send(one)
    node.send(other, at_s=5.0)
    node.send(one, 1, at_s=10.0)
    node.engine.run(100.0)
    request = node.finished[-1][0]
    num_blocks = 1281 // BLOCK_TOKENS
    assert request.gpu_hit + request.dram_hit == num_blocks
    assert request.load_s == pytest.approx(request.dram_hit * BLOCK_TOKENS * 1000 / 1e9)
    assert request.num_recomputed == 0
    assert request.first_token_s > 10.0 + request.load_s
