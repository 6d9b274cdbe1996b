"""DRAM keeps what the pool does not have: as `connectors.exclusive`, and a clairvoyant's variant.

When DRAM must evict, copies of what paused sessions have in the pool go first; when the pool gives
a session up, what DRAM lacks of it is copied out first. Copies out take no time here: they were
2-7 of 400 GB/s in the study; their number is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentkv.controller import Controller
from agentkv.policy.ranking import give_up_keys
from agentkv.portfolio import candidate_of
from agentkv.sessions import BlockRef, Pause, Session, SessionKey
from agentkv.sim.machine import Machine

_AHEAD = 4
_RESCAN_S = 2.0


class Exclusive:
    """`is_clairvoyant`: pauses' returns are exact, and DRAM follows them."""

    def __init__(
        self,
        machine: Machine,
        controller: Controller,
        *,
        is_clairvoyant: bool,
    ) -> None:
        self.num_copied = 0
        self._machine = machine
        self._controller = controller
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
            found.extend(block for block in pool.used if block in dram.blocks)
            dram.make_ready(found)
        if dram.num_expendable < num_blocks:
            for session in self._to_drop():
                refs = self._controller.sessions.private_blocks(session)
                dram.make_ready([block for _, block in refs])
                if dram.num_expendable >= _AHEAD * num_blocks:
                    break

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

    def _to_drop(self) -> Iterator[Session]:
        """Whoever is worth least gives way, the tail first."""
        machine, pauses = self._machine, self._controller.pauses
        if self._is_clairvoyant:
            pairs = [*pauses.away(), *pauses.kept()]
            keys = give_up_keys([candidate_of(pause) for _, pause in pairs], machine.now_s)
            yield from (pairs[i][0] for i in sorted(range(len(pairs)), key=keys.__getitem__))
        else:
            token_bytes = machine.profile.bytes_per_token
            dram_tokens = machine.dram.num_blocks * machine.block_tokens
            yield from self._controller.portfolio.to_drop(int(token_bytes * dram_tokens))
