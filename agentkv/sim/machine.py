"""What engine and keepers share: the clock, coming events, pool, DRAM and the link between them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from agentkv.clock import ManualClock
from agentkv.sim.dram import Dram
from agentkv.sim.pool import Pool
from agentkv.sim.profiles import Profile
from agentkv.sim.workload import PlannedTurn, SessionRun

Event = Callable[[], None]


@dataclass(eq=False, slots=True)
class Request:
    """One turn being served. Hits and `num_known` are blocks.

    `position`: tokens computed; `scheduled`: those too that steps put together will have computed.
    `load_s`: seconds that its blocks took from DRAM and below. `stretch`, `wrong_by`: factors on
    time-outs and on stated waits.
    """

    request_id: str
    slot: int
    run: SessionRun
    number: int
    planned: PlannedTurn
    chain: list[bytes]
    arrived_s: float
    is_last: bool
    is_resume: bool
    stretch: float = 1.0
    wrong_by: float = 1.0
    gpu_hit: int = 0
    dram_hit: int = 0
    position: int = 0
    scheduled: int = 0
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    load_s: float = 0.0

    @property
    def prompt_chain(self) -> list[bytes]:
        return self.chain[: self.planned.num_prompt]

    @property
    def num_recomputed(self) -> int:
        """Blocks that earlier turns had computed and this one computes again.

        A prefix that all sessions share is not counted, here nor in `num_reusable`: it always hits.
        """
        num_hit = max(self.gpu_hit + self.dram_hit, self.planned.num_shared)
        return max(0, self.planned.num_known - num_hit)

    @property
    def num_reusable(self) -> int:
        return self.planned.num_known - self.planned.num_shared


class Events:
    """What happens when; at one moment in the order in which it was pushed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()

    def push(self, at_s: float, event: Event) -> None:
        heapq.heappush(self._heap, (at_s, next(self._numbers), event))

    def pop_due(self, now_s: float) -> Event | None:
        if self._heap and self._heap[0][0] <= now_s:
            return heapq.heappop(self._heap)[2]
        return None

    @property
    def next_s(self) -> float:
        """When the next one happens; inf if none will."""
        return self._heap[0][0] if self._heap else float("inf")


class Link:
    """One copy after the other."""

    def __init__(self, bytes_per_s: float, latency_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s
        self.busy_s = 0.0
        self._free_at_s = float("-inf")

    def transfer(self, now_s: float, num_bytes: float) -> float:
        """Begins a copy as soon as the link is free; returns when it is done."""
        seconds = num_bytes / self.bytes_per_s
        self.busy_s += seconds
        self._free_at_s = max(now_s, self._free_at_s) + seconds
        return self._free_at_s + self.latency_s


@dataclass(slots=True)
class Machine:
    """One node. `block_bytes`: KV bytes of a block."""

    profile: Profile
    block_tokens: int
    pool: Pool
    dram: Dram
    load_link: Link
    clock: ManualClock
    events: Events = field(default_factory=Events)

    @property
    def block_bytes(self) -> float:
        return self.block_tokens * self.profile.bytes_per_token

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def load(self, blocks: list[bytes]) -> float:
        """Begins to load these from DRAM, or from a tier below; returns when they are there.

        What comes from below is in DRAM from then on.
        """
        below: dict[str, float] = {}
        slow_s = 0.0
        missing = [block for block in blocks if block not in self.dram.blocks]
        for block in missing:
            tier = self.dram.find_below(block)
            if tier is not None:
                below[tier.name] = below.get(tier.name, 0.0) + self.block_bytes
        for tier in self.dram.tiers:
            slow_s += tier.load_s(below.get(tier.name, 0.0))
        if missing:
            self.dram.promote(missing)
        self.dram.pin(blocks)
        num_bytes = len(blocks) * self.block_bytes
        done_s = self.load_link.transfer(self.now_s + slow_s, num_bytes)
        self.events.push(done_s, lambda: self.dram.unpin(blocks))
        return done_s
