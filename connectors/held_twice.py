"""Which blocks of DRAM the pool has, too: those can go first, and nothing is lost.

The pool keeps the KV of a running turn because it is in use, and that of a paused session until
agentkv gives it up: so there is always a moment to copy it out again. Looked for in two ways: every
block that DRAM got or used since the last look, once, newest first; and the sessions in the pool,
running turns first, then who returns first, each once in a while.
Why the first: what a turn stores while it computes is held twice from then on, and a session whose
copy was taken for DRAM's only one costs another session its only copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set

from vllm.v1.kv_offload.base import OffloadKey, get_offload_block_hash, make_offload_key
from vllm.v1.request import Request

from agentkv.clock import Clock
from agentkv.controller import Controller
from agentkv.pause_table import RankedQueue
from agentkv.sessions import BlockRef, Session, SessionKey, Turn

from .cache_policy import AgentKVCachePolicy
from .kept_prefix import KeptPrefixes
from .layout import Layout
from .pool_order import PoolOrder

_RESCAN_S = 2.0
_LOOKS, _FEWEST_LOOKS = 4, 1024  # So many times what is wanted, or so many, at a time.


class HeldTwice:
    """Owned by the scheduler thread. `requests` are all unfinished ones, kept by the owner."""

    def __init__(
        self,
        controller: Controller,
        clock: Clock,
        dram: AgentKVCachePolicy,
        layout: Layout,
        requests: Mapping[str, Request],
        kept: KeptPrefixes,
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._dram = dram
        self._layout = layout
        self._requests = requests
        self._kept = kept
        self._looked_at_s = -_RESCAN_S
        self._looked_at: dict[SessionKey, int] = {}  # running turns, since then
        # Paused sessions not looked at since then, and the newest one that was known.
        self._by_return: RankedQueue | None = None
        self._held_since = -1

    def clear(self) -> None:
        """The engine dropped its caches."""
        self._looked_at.clear()
        self._by_return = None

    def find(self, order: PoolOrder, most: int, besides: Set[OffloadKey]) -> list[OffloadKey]:
        """DRAM's blocks that the pool has, too, and keeps: about so many that nobody copies."""
        found: dict[OffloadKey, None] = {}
        num_left = most
        for keys in itertools.chain(self._fresh(order, most), self._of_sessions(order)):
            for key in keys:
                if key not in besides and key not in found:
                    found[key] = None
                    num_left -= self._dram.is_idle(key)
            if num_left <= 0:
                break
        return list(found)

    # --- parts ---

    def _fresh(self, order: PoolOrder, most: int) -> Iterator[list[OffloadKey]]:
        """Of what came to DRAM or was used there, one by one."""
        num_looks = max(_FEWEST_LOOKS, _LOOKS * most)
        for key in itertools.islice(self._dram.take_fresh(), num_looks):
            num_users = order.num_users(key)
            if num_users is not None and self._is_private(get_offload_block_hash(key), num_users):
                yield [key]

    def _is_private(self, block_hash: bytes, num_users: int) -> bool:
        """Whether the block will be copied out when its session, and no other one, is given up."""
        sessions = self._controller.sessions
        place = sessions.tree.place(block_hash)
        if place is None:
            return num_users == 1  # A running turn has just computed it.
        assert isinstance(place.owner, SessionKey)
        session, prefix = sessions.get(place.owner), self._kept.get(place.owner)
        if place.num_branches > 1 or session is None or prefix is None:
            return False
        if block_hash not in prefix.block_hashes[place.depth - 1 : place.depth]:
            return False
        return session.pause is None or not session.pause.is_given_up

    def _of_sessions(self, order: PoolOrder) -> Iterator[list[OffloadKey]]:
        """Session by session."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_at_s >= _RESCAN_S:
            self._looked_at_s = now_s
            self._looked_at.clear()  # More of them may be in DRAM by now.
            self._by_return = None
        for refs in self._held():
            yield [key for ref in refs for key in self._keys_of(ref, order)]

    def _held(self) -> Iterator[list[BlockRef]]:
        """What only one session uses and the pool is sure to keep until it can be copied out."""
        for request_id, request in self._requests.items():
            turn = self._controller.sessions.turn(request_id)
            if turn is None or not turn.is_scheduled:
                continue
            if self._looked_at.get(turn.session.key) != turn.number:
                self._looked_at[turn.session.key] = turn.number
                yield self._blocks_of(turn, request)
        for session in self._held_sessions():
            yield self._controller.sessions.private_blocks(session)

    def _blocks_of(self, turn: Turn, request: Request) -> list[BlockRef]:
        """The blocks of a running turn that no other session uses, its new ones among them."""
        sessions = self._controller.sessions
        num_known = sessions.tree.match_depth(request.block_hashes)
        new = enumerate(request.block_hashes[num_known:], start=num_known + 1)
        return [*new, *sessions.private_blocks(turn.session)]

    def _held_sessions(self) -> Iterator[Session]:
        """Those that could be copied out again; whoever returns first needs DRAM least.

        Each once in a while: a walk over all its blocks has to pay.
        """
        pauses = self._controller.pauses
        since = -1 if self._by_return is None else self._held_since
        self._held_since, new = pauses.table.newest, pauses.table.kept(since=since)
        if self._by_return is None or len(new):
            returns_s = pauses.table.rows()["returns_at_s"][new]
            found = pauses.table.sorted(new, [returns_s])
            if self._by_return is None:
                self._by_return = found
            else:
                self._by_return.put_all(found)
        while (entry := self._by_return.pop()) is not None:
            session, pause = entry[-1]
            if pauses.is_kept(session, pause) and self._kept.get(session.key) is not None:
                yield session

    def _keys_of(self, ref: BlockRef, order: PoolOrder) -> Iterator[OffloadKey]:
        depth, block_hash = ref
        for group in self._layout.groups:
            if depth % group.per_chunk == 0 and order.holds(group, block_hash):
                key = make_offload_key(block_hash, group.group_id)
                if self._dram.is_sole(key):
                    yield key
