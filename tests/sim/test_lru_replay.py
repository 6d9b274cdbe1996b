"""`lru` without DRAM against a plain replay of the same turns that knows no simulator.

The replay keeps one list of blocks by last use, the oldest first, and counts hits of whole
prefixes. It is written from vLLM's rules: freed tail first, reused from the front.
"""

import pytest
from sim.builders import BLOCK_TOKENS, small_run

from agentkv.clock import ManualClock
from agentkv.sim.agents import Agents
from agentkv.sim.dram import Dram
from agentkv.sim.engine import Engine
from agentkv.sim.keeper import NativeKeeper
from agentkv.sim.machine import Link, Machine, Request
from agentkv.sim.pool import Pool
from agentkv.sim.tally import Tally
from agentkv.sim.workload import make_slots


class _Recording(NativeKeeper):
    """Writes down what was admitted and freed, in order."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.log: list[tuple[str, Request]] = []

    def scheduled(self, request: Request) -> None:
        self.log.append(("take", request))

    def finished(self, request: Request) -> None:
        self.log.append(("free", request))


class _Replay:
    """A pool as a list of block names by age; `hits` in the order of the turns."""

    def __init__(self, num_blocks: int) -> None:
        self.queue: list[object] = [("empty", i) for i in range(num_blocks)]
        self.users: dict[object, int] = {}
        self.hits: list[int] = []
        self._num_tails = 0
        self._tails: dict[str, list[object]] = {}

    def take(self, request: Request) -> None:
        most = (request.planned.turn.prompt_tokens - 1) // BLOCK_TOKENS
        depth = 0
        while depth < most and (
            request.chain[depth] in self.users or request.chain[depth] in self.queue
        ):
            depth += 1
        self.hits.append(depth)
        for block in request.chain[:depth]:
            if block in self.queue:
                self.queue.remove(block)
            self.users[block] = self.users.get(block, 0) + 1
        fresh: list[object] = list(request.chain[depth:])
        num_tails = request.planned.num_total - len(request.chain)
        tails: list[object] = [("empty", "t", self._num_tails + i) for i in range(num_tails)]
        self._num_tails += num_tails
        for _ in range(len(fresh) + num_tails):
            self.queue.remove(next(filter(_is_empty, self.queue), self.queue[0]))
        for block in fresh:
            if block in self.users or block in self.queue:  # another turn's, the same content
                if block in self.queue:
                    self.queue.remove(block)
                self.queue.insert(0, ("empty", "d", len(self.hits), block))
            self.users[block] = self.users.get(block, 0) + 1
        self._tails[request.request_id] = tails

    def free(self, request: Request) -> None:
        for block in reversed(request.chain):
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.queue.append(block)
        self.queue[:0] = self._tails.pop(request.request_id)


def _is_empty(block: object) -> bool:
    return isinstance(block, tuple)


@pytest.mark.parametrize("oversubscription", [0.8, 2.0])
def test_the_same_hits_as_a_plain_replay(oversubscription: float) -> None:
    (spec,), prepared = small_run("lru", oversubscription=(oversubscription,), dram=(0.0,))
    node = spec.node
    machine = Machine(
        profile=node.profile,
        block_tokens=BLOCK_TOKENS,
        pool=Pool(node.pool_blocks),
        dram=Dram(0),
        load_link=Link(1e9, 0.0),
        clock=ManualClock(-1e6),
    )
    keeper = _Recording(machine)
    agents = Agents(machine, keeper, spec.options)
    agents.engine = engine = Engine(machine, keeper, Tally(machine, 0.0), agents.finished)
    agents.seed(make_slots(prepared.sessions, spec.options, node, seed=3))
    engine.run(120.0)

    replay = _Replay(node.pool_blocks)
    for event, request in keeper.log:
        (replay.take if event == "take" else replay.free)(request)
    taken = [request for event, request in keeper.log if event == "take"]
    assert len(taken) > 100
    assert [request.gpu_hit for request in taken] == replay.hits
    if oversubscription > 1:
        assert any(request.num_recomputed for request in taken)
