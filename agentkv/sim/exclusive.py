"""DRAM keeps what the pool does not have: as `connectors.exclusive`, and a clairvoyant's variant.

When DRAM must evict, copies of what running turns and paused sessions have in the pool go first;
when the pool gives a session up, or will soon, what DRAM lacks of it is copied out first. Copies
out take no time here: they were 2-7 of 400 GB/s in the study; their number is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from agentkv.controller import Controller
from agentkv.pause_table import candidate_of
from agentkv.policy import Action
from agentkv.policy.ranking import give_up_keys
from agentkv.resumes import action_of
from agentkv.sessions import BlockRef, Pause, Session, SessionKey
from agentkv.sim.machine import Machine, Request

_AHEAD = 4
_RESCAN_S = 2.0
_AHEAD_EVERY_S = 0.1


class Exclusive:
    """`running`: the turns that have blocks; `chains`: all blocks of paused sessions; both are kept
    by others. `is_clairvoyant`: pauses' returns are exact, and DRAM follows them.
    """

    def __init__(
        self,
        machine: Machine,
        controller: Controller,
        *,
        running: Mapping[str, Request],
        chains: Mapping[SessionKey, list[bytes]],
        is_clairvoyant: bool,
    ) -> None:
        self.num_copied = 0
        self._machine = machine
        self._controller = controller
        self._running = running
        self._chains = chains
        self._is_clairvoyant = is_clairvoyant
        self._looked_at_s = float("-inf")
        self._copied_at_s = float("-inf")
        self._marked: dict[SessionKey, int] = {}
        profile, size = machine.profile, machine.block_tokens
        self._ahead_blocks = -(-profile.max_step_tokens // size)

    def make_room(self, num_blocks: int, besides: Collection[bytes]) -> None:
        """DRAM is about to evict so many blocks: those go first that cost nothing.

        `besides`: those that must stay, for they are what room is made for.
        """
        dram = self._machine.dram
        num_wanted = num_blocks + dram.num_expendable_of(besides)
        num_lacking = num_wanted - dram.num_expendable
        if num_lacking <= 0:
            return
        dram.make_ready(self._held_twice(_AHEAD * num_lacking, besides))
        if dram.num_expendable < num_wanted:
            self._drop_least(num_wanted, besides)

    def before_give_up(self, session: Session, refs: Sequence[BlockRef]) -> None:
        """The pool may soon reuse these blocks, deepest first."""
        dram = self._machine.dram
        blocks = [block for _, block in refs]
        dram.make_needed(blocks)
        num_lacking = len(self._lacking(blocks))
        if 0 < num_lacking <= dram.num_blocks:
            self._copy_out(session, num_lacking)

    def after_step(self) -> None:
        """Copies out ahead what the pool will give up next, into room that costs nothing."""
        now_s, dram = self._machine.now_s, self._machine.dram
        if now_s - self._copied_at_s < _AHEAD_EVERY_S or dram.num_room:
            return
        self._copied_at_s = now_s
        ahead = self._ahead_blocks
        if not dram.num_blocks or self._machine.pool.count_front(ahead)[0] >= ahead:
            return
        num_left = ahead
        for session, pause in self._controller.portfolio.order():
            if num_left <= 0:
                return
            if action_of(pause) is Action.RECOMPUTE:
                continue
            blocks = [block for _, block in self._controller.sessions.private_blocks(session)]
            num_left -= len(blocks)
            num_lacking = len(self._lacking(blocks))
            if num_lacking:
                self.make_room(num_lacking, frozenset(blocks))
                if num_lacking <= dram.num_expendable - dram.num_expendable_of(blocks):
                    self._copy_out(session, num_lacking)
                return

    # --- parts ---

    def _held_twice(self, most: int, besides: Collection[bytes]) -> list[bytes]:
        """About so many of DRAM's blocks that the pool has, too, and keeps."""
        dram, pool = self._machine.dram, self._machine.pool
        if self._machine.now_s - self._looked_at_s >= _RESCAN_S:
            self._looked_at_s = self._machine.now_s
            self._marked.clear()
        fresh = ([block] for block in dram.take_fresh() if self._is_private(block))
        held = ([b for b in blocks if pool.holds(b)] for blocks in self._held())
        found: dict[bytes, None] = {}
        for blocks in itertools.chain(fresh, held):
            found.update((b, None) for b in blocks if dram.is_needed(b) and b not in besides)
            if len(found) >= most:
                break
        return list(found)

    def _is_private(self, block: bytes) -> bool:
        """Whether the pool keeps the block until its session, and no other one, is given up."""
        num_users = self._machine.pool.num_users(block)
        place = self._controller.sessions.tree.place(block)
        if num_users is None or place is None:
            return num_users == 1
        assert isinstance(place.owner, SessionKey)
        session = self._controller.sessions.get(place.owner)
        if place.num_branches > 1 or session is None:
            return False
        return session.pause is None or not session.pause.is_given_up

    def _lacking(self, blocks: Sequence[bytes]) -> list[bytes]:
        """Those that only the pool has."""
        dram, pool = self._machine.dram, self._machine.pool
        return [
            block
            for block in blocks
            if block not in dram.blocks and pool.holds(block) and dram.find_below(block) is None
        ]

    def _copy_out(self, session: Session, num_blocks: int) -> None:
        """What the pool has of the whole session, as if its turn had just ended."""
        chain = self._chains.get(session.key)
        if chain is not None:
            blocks = [block for block in chain if self._machine.pool.holds(block)]
            self._machine.dram.offer(blocks)
            self._machine.dram.touch(blocks)
            self.num_copied += num_blocks

    def _held(self) -> Iterator[list[bytes]]:
        """What the pool is sure to keep until it can be copied out: of running turns, then of
        paused sessions, each once in a while."""
        sessions = self._controller.sessions
        for request_id, request in self._running.items():
            turn = sessions.turn(request_id)
            if turn is not None and self._marked.get(turn.session.key) != (
                mark := -1 - turn.number
            ):
                self._marked[turn.session.key] = mark
                new = request.chain[sessions.tree.match_depth(request.chain) :]
                yield [*new, *(block for _, block in sessions.private_blocks(turn.session))]
        for session, pause in self._held_sessions():
            self._marked[session.key] = pause.pause_id
            yield [block for _, block in sessions.private_blocks(session)]

    def _held_sessions(self) -> list[tuple[Session, Pause]]:
        """Whoever returns first needs DRAM least."""
        pauses = self._controller.pauses.kept()
        if len(self._marked) > 2 * len(pauses) + 64:
            self._marked.clear()
        new = [(s, p) for s, p in pauses if self._marked.get(s.key) != p.pause_id]
        return sorted(new, key=lambda pair: pair[1].returns_at_s)

    def _drop_least(self, num_wanted: int, besides: Collection[bytes]) -> None:
        """All that DRAM holds is needed: those give way whose copies are worth least, no more of
        them than have to.
        """
        dram = self._machine.dram
        for session in self._to_drop():
            refs = self._controller.sessions.private_blocks(session)
            needed = [b for _, b in refs if dram.is_needed(b) and b not in besides]
            dram.make_ready(needed[: num_wanted - dram.num_expendable])
            if dram.num_expendable >= num_wanted:
                break

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
