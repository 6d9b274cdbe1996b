"""DRAM keeps what the pool does not have: as `connectors.exclusive`, and a clairvoyant's variant.

When DRAM must evict, copies of what paused sessions have in the pool go first; when the pool gives
a session up, what DRAM lacks of it is copied out first. Copies out take no time here: they were
2-7 of 400 GB/s in the study; their number is counted.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from agentkv.controller import Controller
from agentkv.pause_book import OpenPause
from agentkv.policy.ranking import Candidate, Key, give_up_keys, is_due
from agentkv.sessions import BlockRef, Pause, Session, SessionKey
from agentkv.sim.machine import Machine

_AHEAD = 4
_RESCAN_S = 2.0


class Exclusive:
    """`drops_running`: copies of what running turns use count as held twice, too. `ranks`: when
    nothing else is expendable, who is worth least gives way, not who was used longest ago.
    `is_clairvoyant`: pauses' returns are exact and need no second look.
    """

    def __init__(
        self,
        machine: Machine,
        controller: Controller,
        *,
        drops_running: bool,
        ranks: bool,
        is_clairvoyant: bool,
    ) -> None:
        self.num_copied = 0
        self._machine = machine
        self._controller = controller
        self._drops_running = drops_running
        self._ranks = ranks or is_clairvoyant
        self._is_clairvoyant = is_clairvoyant
        self._looked_at_s = float("-inf")
        self._marked: dict[SessionKey, int] = {}

    def make_room(self, num_blocks: int) -> None:
        """DRAM is about to evict so many blocks: those go first that cost nothing."""
        dram, pool = self._machine.dram, self._machine.pool
        if dram.num_expendable < num_blocks:
            now_s = self._machine.now_s
            if now_s - self._looked_at_s >= _RESCAN_S:
                self._looked_at_s = now_s
                self._marked.clear()
            found: list[bytes] = []
            for session, pause in self._held_sessions():
                self._marked[session.key] = pause.pause_id
                refs = self._controller.sessions.private_blocks(session)
                found.extend(b for _, b in refs if b in dram.blocks and pool.holds(b))
                if len(found) >= _AHEAD * num_blocks:
                    break
            if self._drops_running:
                found.extend(block for block in pool.used if block in dram.blocks)
            dram.make_ready(found)
        if self._ranks and dram.num_expendable < num_blocks:
            self._ready_least(num_blocks)

    def before_give_up(self, refs: Sequence[BlockRef]) -> None:
        """The pool may soon reuse these blocks, deepest first."""
        dram, pool = self._machine.dram, self._machine.pool
        chain = [block for _, block in reversed(refs)]
        dram.make_needed(chain)
        lacking = [
            block
            for block in chain
            if block not in dram.blocks and pool.holds(block) and dram.find_below(block) is None
        ]
        if 0 < len(lacking) <= dram.num_blocks:
            self.num_copied += len(lacking)
            dram.store(lacking)

    def _held_sessions(self) -> list[tuple[Session, Pause]]:
        """Each once in a while; whoever returns first needs DRAM least."""
        pauses = self._controller.pauses.kept()
        if len(self._marked) > 2 * len(pauses) + 64:
            self._marked.clear()
        new = [(s, p) for s, p in pauses if self._marked.get(s.key) != p.pause_id]
        return sorted(new, key=lambda pair: pair[1].returns_at_s)

    def _ready_least(self, num_blocks: int) -> None:
        """Whoever is worth least gives way, the tail first; decided anew if that was long ago."""
        pauses, dram = self._controller.pauses, self._machine.dram
        now_s = self._machine.now_s
        pairs = [*pauses.away(), *pauses.kept()]
        numbers = itertools.count()
        queue = [
            (key, next(numbers), pair)
            for key, pair in zip(self._keys(pairs, now_s), pairs, strict=True)
        ]
        heapq.heapify(queue)
        while queue and dram.num_expendable < num_blocks:
            _, _, pair = heapq.heappop(queue)
            session, pause = pair
            if not self._is_clairvoyant and _is_out_of_date(pause, now_s):
                self._controller.decide(session, pause)
                heapq.heappush(queue, (self._keys([pair], now_s)[0], next(numbers), pair))
                continue
            refs = self._controller.sessions.private_blocks(session)
            dram.make_ready([block for _, block in refs])

    def _keys(self, pairs: Sequence[OpenPause], now_s: float) -> list[Key]:
        is_trusted = self._controller.portfolio.benefit.is_worth_it
        candidates = [_candidate(pause) for _, pause in pairs]
        return give_up_keys(candidates, now_s, is_prediction_trusted=is_trusted)


def _candidate(pause: Pause) -> Candidate:
    assert pause.decision is not None
    return Candidate(
        decision=pause.decision,
        started_s=pause.started_s,
        decided_s=pause.decided_s,
        returns_at_s=pause.returns_at_s,
        is_tool_done=pause.tool_done_s is not None,
    )


def _is_out_of_date(pause: Pause, now_s: float) -> bool:
    assert pause.decision is not None
    decided_age_s = pause.decided_s - pause.started_s
    return is_due(pause.decision, decided_age_s=decided_age_s, age_s=now_s - pause.started_s)
