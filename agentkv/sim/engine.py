"""Continuous batching as vLLM does it: steps, chunked prefill, admission, decoding.

    waiting (FCFS, the head blocks) ─► blocks for prompt and answer ─► load from DRAM, beside steps
                                                    └─► prefill in chunks ─► decode ─► finished

A step has `max_step_tokens`: one for each decoding turn, the rest for prefill, those begun first.
Steps in which only decodes run are jumped over up to the next event: their time is a sum of an
arithmetic series. Where: driven by `agents`, tells a `Keeper`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

from agentkv.sim.keeper import Keeper
from agentkv.sim.machine import Machine, Request
from agentkv.sim.tally import Tally


class Engine:
    """One engine on one machine. `on_finished` is called with every turn that ends."""

    def __init__(
        self,
        machine: Machine,
        keeper: Keeper,
        tally: Tally,
        on_finished: Callable[[Request], None],
    ) -> None:
        self.machine = machine
        self._keeper = keeper
        self._tally = tally
        self._on_finished = on_finished
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []
        self._decoding: list[tuple[int, int, Request]] = []
        self._numbers = itertools.count()
        self._num_steps = 0
        self._num_loading = 0
        self._held: dict[str, Request] = {}
        self._planned: list[tuple[Request, int]] = []
        self._planned_loads: list[tuple[Request, list[bytes]]] = []
        self._is_ahead = False
        self._kv_tokens = 0  # read by a decode step
        self._step_tokens = machine.profile.max_step_tokens

    # --- turns ---

    def arrive(self, request: Request, true_wait_s: float) -> None:
        self.machine.pool.paused.difference_update(request.chain)
        self._waiting.append(request)
        self._keeper.arrived(request, true_wait_s)

    def seed(self, request: Request, true_wait_s: float) -> None:
        """A turn of before the start: leaves its blocks and its pause, takes no time."""
        self.machine.pool.paused.difference_update(request.chain)
        self._keeper.arrived(request, true_wait_s)
        self._take_blocks(request, self._match(request))
        self._keeper.scheduled(request)
        self._end(request)
        self._keeper.after_step(1)

    @property
    def num_unfinished(self) -> int:
        return len(self._held) + len(self._waiting) + self._num_admitted

    @property
    def _num_admitted(self) -> int:
        return len(self._prefilling) + len(self._decoding) + self._num_loading

    # --- time ---

    def run(self, until_s: float) -> None:
        """Until then, or until nothing is left to happen."""
        while self.machine.now_s < until_s:
            while (event := self.machine.events.pop_due(self.machine.now_s)) is not None:
                event()
            self._review()
            chunks = self._next_chunks()
            if chunks:
                num_steps = self._mixed_step(chunks)
            elif self._decoding:
                num_steps = self._decode_steps(min(until_s, self.machine.events.next_s))
            else:
                next_s = min(until_s, self.machine.events.next_s)
                if math.isinf(next_s):
                    return
                self.machine.clock.advance(max(0.0, next_s - self.machine.now_s))
                self._tally.note_paused()
                num_steps = 0
            self._keeper.after_step(num_steps)

    def _review(self) -> None:
        """Takes who is held back out of the queue, and puts who no longer is back in its place."""
        held, released = self._keeper.review(is_idle=not self._waiting and not self._num_admitted)
        for request in held:
            self._waiting.remove(request)
            self._held[request.request_id] = request
        if released:
            queue = [*self._waiting, *(self._held.pop(each.request_id) for each in released)]
            self._waiting = deque(sorted(queue, key=lambda each: each.arrived_s))

    def _next_chunks(self) -> list[tuple[Request, int]]:
        """The prefill chunks of the step that begins now; see `Profile.is_async`."""
        if not self.machine.profile.is_async:
            return self._schedule()
        for request, blocks in self._planned_loads:
            self._load(request, blocks)
            self.machine.dram.unpin(blocks)
        self._planned_loads.clear()
        chunks = self._planned
        if not chunks and not self._decoding:  # Nothing is under way.
            chunks = self._schedule()
        self._is_ahead = bool(chunks or self._decoding)
        self._planned = self._schedule() if self._is_ahead else []
        self._is_ahead = False
        return chunks

    def _schedule(self) -> list[tuple[Request, int]]:
        """The prefill chunks of a step."""
        budget = self._step_tokens - len(self._decoding)
        chunks: list[tuple[Request, int]] = []
        for request in self._prefilling:
            budget = self._add_chunk(chunks, request, budget)
        limit = self.machine.profile.max_running - len(self._decoding) - len(self._prefilling)
        while self._waiting and budget > 0 and limit > 0:
            request = self._waiting[0]
            if not self._admit(request):
                break
            self._waiting.popleft()
            limit -= 1
            if request.dram_hit == 0:
                self._prefilling.append(request)
                budget = self._add_chunk(chunks, request, budget)
        return chunks

    def _add_chunk(self, chunks: list[tuple[Request, int]], request: Request, budget: int) -> int:
        size = min(budget, request.planned.turn.prompt_tokens - request.scheduled)
        if size <= 0:
            return budget
        request.scheduled += size
        chunks.append((request, size))
        self._keeper.computing(request, request.scheduled)
        return budget - size

    def _mixed_step(self, chunks: list[tuple[Request, int]]) -> int:
        profile = self.machine.profile
        fixed_s = profile.prefill_step_s
        if self._decoding:
            # What a step takes whatever its size it takes once, also where it does both.
            fixed_s = max(fixed_s, profile.decode_step_s)
        seconds = fixed_s + self._kv_tokens * profile.read_s_per_token
        for request, size in chunks:
            prefill_s = profile.prefill_s(size, request.position + size / 2)
            seconds += prefill_s
            self._keeper.recomputed(self._tally.prefilled(request, size, prefill_s))
        self._pass(1, seconds)
        for request, size in chunks:
            request.position += size
            if request.position >= request.planned.turn.prompt_tokens:
                self._prefilling.remove(request)
                self._begin_decoding(request)
        return 1

    def _decode_steps(self, until_s: float) -> int:
        """As many decode steps as there are until a turn ends or something happens."""
        profile = self.machine.profile
        count = len(self._decoding)
        most = 1 if self._planned else self._decoding[0][0] - self._num_steps
        first_s = profile.decode_step_s + self._kv_tokens * profile.read_s_per_token
        growth_s = count * profile.read_s_per_token
        num_steps = most
        left_s = until_s - self.machine.now_s
        if most * (first_s + growth_s * (most - 1) / 2) > left_s:
            # n·first + growth·n(n-1)/2 >= left, solved for the least n
            slope = first_s - growth_s / 2
            root = math.sqrt(slope * slope + 2 * growth_s * left_s)
            num_steps = min(most, max(1, math.ceil(2 * left_s / (slope + root))))
        self._pass(num_steps, num_steps * (first_s + growth_s * (num_steps - 1) / 2))
        return num_steps

    def _pass(self, num_steps: int, seconds: float) -> None:
        """Decoding turns got a token in each step; those that have all end."""
        self.machine.clock.advance(seconds)
        self._tally.stepped(seconds, num_steps * len(self._decoding))
        self._num_steps += num_steps
        self._kv_tokens += num_steps * len(self._decoding)
        while self._decoding and self._decoding[0][0] <= self._num_steps:
            _, _, request = heapq.heappop(self._decoding)
            turn = request.planned.turn
            self._kv_tokens -= turn.prompt_tokens + turn.output_tokens
            self._finish(request)

    # --- one turn ---

    def _match(self, request: Request) -> int:
        """Blocks of the prompt that the pool has; the last token is computed in any case."""
        most = (request.planned.turn.prompt_tokens - 1) // self.machine.block_tokens
        return self.machine.pool.cached_depth(request.chain, most)

    def _take_blocks(self, request: Request, depth: int) -> None:
        planned, pool = request.planned, self.machine.pool
        chain = request.chain
        pool.take(chain[:depth], chain[depth:], planned.num_total - planned.num_full)
        request.gpu_hit = depth
        request.admitted_s = self.machine.now_s

    def _admit(self, request: Request) -> bool:
        """Gives a turn its blocks and begins its load, if there is one; False: too few are free."""
        self._keeper.before_match()
        depth = self._match(request)
        chain = request.chain
        if not self.machine.pool.can_take(chain[:depth], request.planned.num_total - depth):
            return False
        block_tokens = self.machine.block_tokens
        most = (request.planned.turn.prompt_tokens - 1) // block_tokens
        end = self.machine.dram.hit_depth(chain, depth, most)
        if end > depth and self._keeper.is_short_hit((end - depth) * block_tokens):
            end = depth
        self._take_blocks(request, depth)
        request.dram_hit = end - depth
        request.position = request.scheduled = end * block_tokens
        if request.dram_hit:
            self._begin_load(request, chain[depth:end])
        self._keeper.scheduled(request)
        return True

    def _begin_load(self, request: Request, blocks: list[bytes]) -> None:
        """With the step that the turn was scheduled for, which may not be the one that begins."""
        self._num_loading += 1
        if self._is_ahead:
            self.machine.dram.pin(blocks)
            self._planned_loads.append((request, blocks))
        else:
            self._load(request, blocks)

    def _load(self, request: Request, blocks: list[bytes]) -> None:
        done_s = self.machine.load(blocks)
        request.load_s = done_s - self.machine.now_s

        def loaded() -> None:
            self._num_loading -= 1
            self._prefilling.append(request)
            self._keeper.loaded(request)

        self.machine.events.push(done_s, loaded)

    def _begin_decoding(self, request: Request) -> None:
        request.first_token_s = self.machine.now_s
        turn = request.planned.turn
        if turn.output_tokens <= 1:
            self._finish(request)
            return
        last_step = self._num_steps + turn.output_tokens - 1
        heapq.heappush(self._decoding, (last_step, next(self._numbers), request))
        self._kv_tokens += turn.prompt_tokens + 1

    def _finish(self, request: Request) -> None:
        self._tally.finished(request)
        self._end(request)
        self._on_finished(request)

    def _end(self, request: Request) -> None:
        planned, pool = request.planned, self.machine.pool
        pool.release(request.chain, planned.num_total - planned.num_full)
        if not request.is_last:
            pool.paused.update(request.chain)
        self._keeper.finished(request)
