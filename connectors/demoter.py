"""Writes KV from DRAM to tiers below: what will be parked for long, and what DRAM must drop soon.

    pause decided ─► long? due now : due once it has lasted long ─► all its blocks, root first
    DRAM nearly full of blocks that nobody else has ─► the ones that would be evicted next

Always ahead of need: a block is written while DRAM still has it, so that evicting it costs nothing
and no request waits for a write. What no live session needs is not written. Which tier, `placement`
decides. Bounded: few blocks at a time, few looks per second; the writing itself is the tiers' own.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadKey, get_offload_block_hash

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.config import AgentKVConfig
from agentkv.controller import Controller
from agentkv.policy.placement import TierOffer, choose_tier
from agentkv.sessions import Pause, Session, SessionKey

from .layout import Layout
from .store_tier import StoreTier
from .tiering import AgentKVTieringManager

_LOOK_EVERY_S = 0.02
_LOW_SHARE = 4  # A quarter of DRAM is kept free or evictable without loss.
_BATCH_SHARE = 8  # An eighth may be on its way down: it cannot be evicted meanwhile.
_REFUSED_FOR_S = 1.0
_AGAIN_S = 0.2
_TRY_FOR_S = 2.0
_MAX_PARKINGS = 8
_MAX_LOOKS = 256  # Blocks at once: the scheduler's time is dear.
_SCAN = 4  # Blocks looked at for each one written.


@dataclass(slots=True)
class _Parking:
    """A pause whose blocks are on their way to a tier; `keys` are still to be written."""

    session: Session
    pause: Pause
    tier: StoreTier
    keys: deque[OffloadKey]
    in_flight: set[OffloadKey] = field(default_factory=set)
    written: list[OffloadKey] = field(default_factory=list)
    is_whole: bool = True
    was_refused: bool = False


class _Tries:
    """How long pauses have been parked without getting on.

    What does not fit into DRAM goes down in parts, each in a while of its own. Not for ever: a tier
    that is too small writes each part in place of another.
    """

    def __init__(self) -> None:
        self._by_pause: dict[int, tuple[float, int]] = {}

    def is_worth_another(self, pause: Pause, num_held: int, now_s: float) -> bool:
        """`num_held`: blocks that the tier has by now."""
        since_s, most_held = self._by_pause.get(pause.pause_id, (now_s, -1))
        if num_held > most_held:
            since_s, most_held = now_s, num_held
        self._by_pause[pause.pause_id] = since_s, most_held
        return now_s < since_s + _TRY_FOR_S

    def forget(self, pause: Pause) -> None:
        self._by_pause.pop(pause.pause_id, None)

    def clear(self) -> None:
        self._by_pause.clear()


class Demoter:
    """Owned by the scheduler thread. Does nothing without a tier below DRAM."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        manager: AgentKVTieringManager,
        layout: Layout,
        config: AgentKVConfig,
        copy_to_dram: Callable[[Session], None],
    ) -> None:
        self._controller = controller
        self._deps = deps
        self._manager = manager
        self._layout = layout
        self._config = config
        self._copy_to_dram = copy_to_dram
        self._prices = config.prices
        self._due: list[tuple[float, int, Session, Pause]] = []
        self._order = itertools.count()
        self._parkings: deque[_Parking] = deque()
        self._refused_until_s: dict[StoreTier, float] = {}
        self._looked_at_s = self._relieved_until_s = 0.0
        # Pauses of which not all could be written at the first try.
        self._tries = _Tries()
        if manager.tiers:
            manager.on_demoted = self._note_demoted
            controller.on_decided = self.note_decided

    def note_decided(self, session: Session, pause: Pause) -> None:
        """When the pause is due to be parked: at once, if it will be long, else once it was."""
        now_s = self._deps.clock.monotonic_s()
        is_long = pause.returns_at_s - now_s > self._config.park_after_s
        due_s = now_s if is_long else pause.started_s + self._config.park_after_s
        if pause.park_at_s is None or due_s < pause.park_at_s:
            pause.park_at_s = due_s
            heapq.heappush(self._due, (due_s, next(self._order), session, pause))

    def after_step(self) -> None:
        """Writes some more, if there is something to write."""
        now_s = self._deps.clock.monotonic_s()
        if not self._manager.tiers or now_s - self._looked_at_s < _LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        for _ in range(_MAX_PARKINGS - len(self._parkings)):
            if not self._due or self._due[0][0] > now_s:
                break
            _, _, session, pause = heapq.heappop(self._due)
            if session.pause is pause and pause.park_at_s is not None:
                self._park(session, pause)
            else:
                self._tries.forget(pause)
        self._go_on_parking()
        self._relieve()

    def next_look_s(self) -> float | None:
        """Seconds until there is something to write; None if time changes nothing."""
        if self._parkings:
            return _AGAIN_S
        if not self._due:
            return None
        return max(0.0, self._due[0][0] - self._deps.clock.monotonic_s())

    def clear(self) -> None:
        """The engine dropped its caches."""
        self._due.clear()
        self._parkings.clear()
        self._tries.clear()

    # --- parking ---

    def _park(self, session: Session, pause: Pause) -> None:
        """Begins to write all that a later turn of this session would read."""
        tier = self._choose(session)
        if tier is None:
            self._park_later(session, pause, _REFUSED_FOR_S)
            return
        refs = reversed(self._controller.sessions.all_blocks(session))
        keys = deque(self._layout.keys(refs))
        self._parkings.append(_Parking(session, pause, tier, keys))

    def _park_later(self, session: Session, pause: Pause, later_s: float) -> None:
        due_s = self._deps.clock.monotonic_s() + later_s
        heapq.heappush(self._due, (due_s, next(self._order), session, pause))

    def _go_on_parking(self) -> None:
        for parking in list(self._parkings):
            if parking.session.pause is not parking.pause:
                self._parkings.remove(parking)  # The turn is back.
                self._tries.forget(parking.pause)
                continue
            keys = self._next_keys(parking)
            if keys:
                parking.in_flight.update(keys)
                self._write(parking.tier, keys, "wait")
            elif not parking.keys and not parking.in_flight:
                self._parkings.remove(parking)
                self._finish_parking(parking)

    def _next_keys(self, parking: _Parking) -> list[OffloadKey]:
        room = self._room()
        keys: list[OffloadKey] = []
        for _ in range(min(len(parking.keys), _MAX_LOOKS)):
            if len(keys) >= room:
                break
            key = parking.keys.popleft()
            if parking.tier.holds(key):
                continue
            if self._manager.is_idle(key):
                keys.append(key)
            else:
                parking.is_whole = False  # DRAM lost it, or a copy uses it just now.
        return keys

    def _finish_parking(self, parking: _Parking) -> None:
        session, pause = parking.session, parking.pause
        now_s = self._deps.clock.monotonic_s()
        if parking.was_refused:
            self._park_later(session, pause, _REFUSED_FOR_S)
            return
        keys = self._layout.keys(self._controller.sessions.all_blocks(session))
        num_held = sum(parking.tier.holds(key) for key in keys)
        if self._tries.is_worth_another(pause, num_held, now_s) and not parking.is_whole:
            # The last blocks of a turn are in DRAM a little later than the turn is over; others
            # the pool alone has.
            self._copy_to_dram(session)
            self._park_later(session, pause, _AGAIN_S)
            return
        self._tries.forget(pause)
        keys = self._layout.keys(self._controller.sessions.private_blocks(session))
        held = [key for key in keys if parking.tier.holds(key)]
        if len(held) == len(keys):
            pause.parked_in = parking.tier.tier_type
        pause.slow_s = parking.tier.load_s(len(held))
        self._controller.pauses.note(session, pause)  # It takes longer to come back.
        self._manager.dram.make_ready(held)
        self._deps.ledger.record(
            "park",
            pause_id=pause.pause_id,
            session_id=session.key.name,
            tier=parking.tier.tier_type,
            num_blocks=len(held),
            num_written=len(parking.written),
            is_whole=parking.is_whole,
        )

    # --- pressure on DRAM ---

    def _relieve(self) -> None:
        """Keeps some of DRAM free, or evictable without loss."""
        if self._looked_at_s < self._relieved_until_s:
            return
        manager = self._manager
        num_ready = len(manager.dram.chunks) - manager.dram.num_sole
        num_ready += manager.num_free_chunks + manager.num_demoting_chunks
        num_lacking = min(self._room(), manager.num_chunks // _LOW_SHARE - num_ready)
        if num_lacking <= 0:
            return
        by_tier: dict[StoreTier, list[OffloadKey]] = {}
        choices: dict[SessionKey, StoreTier | None] = {}
        ready: list[OffloadKey] = []
        for key in itertools.islice(manager.dram.oldest_sole(), _SCAN * num_lacking):
            if manager.find_below(key) is not None:
                ready.append(key)
            elif (tier := self._choose_for(key, choices)) is not None:
                by_tier.setdefault(tier, []).append(key)
                num_lacking -= 1
                if num_lacking == 0:
                    break
        manager.dram.make_ready(ready)
        if not ready and not by_tier:  # The next time these are the oldest ones again.
            self._relieved_until_s = self._looked_at_s + _AGAIN_S
        for tier, keys in by_tier.items():
            self._write(tier, keys, "pressure")

    def _choose_for(
        self, key: OffloadKey, choices: dict[SessionKey, StoreTier | None]
    ) -> StoreTier | None:
        """The tier for a block, by the session that computed it; None if none needs it."""
        session = self._owner(key)
        if session is None:
            return None
        if session.key not in choices:
            choices[session.key] = self._choose(session)
        return choices[session.key]

    # --- parts ---

    def _choose(self, session: Session) -> StoreTier | None:
        """The tier for this session's KV; None if none takes it or none is worth it."""
        if session.is_local:
            return None
        now_s = self._deps.clock.monotonic_s()
        pause = session.pause
        num_blocks = max(1, self._layout.blocks(session.context_tokens))
        tiers = {
            tier.tier_type: tier
            for tier in self._manager.tiers
            if tier.is_available and self._refused_until_s.get(tier, 0.0) <= now_s
        }
        offers = [
            TierOffer(
                name=name,
                price=self._prices.remote_over_hbm if is_shared else self._prices.ssd_over_hbm,
                store_s=tier.store_s(num_blocks),
                load_s=tier.load_s(num_blocks),
                is_shared=is_shared,
            )
            for name, tier in tiers.items()
            for is_shared in (not tier.store.is_index_local,)
        ]
        chosen = choose_tier(
            offers,
            wait_s=max(0.0, pause.returns_at_s - now_s) if pause is not None else 0.0,
            recompute_s=self._deps.costs.recompute_s(session.context_tokens),
            elsewhere=self._config.returns_elsewhere,
        )
        return None if chosen is None else tiers[chosen.name]

    def _owner(self, key: OffloadKey) -> Session | None:
        sessions = self._controller.sessions
        owner = sessions.tree.owner_at(get_offload_block_hash(key))
        return sessions.get(owner) if isinstance(owner, SessionKey) else None

    def _room(self) -> int:
        """How many more blocks may be on their way."""
        most = max(8, self._manager.num_chunks // _BATCH_SHARE)
        return min(_MAX_LOOKS, max(0, most - self._manager.num_demoting_chunks))

    def _write(self, tier: StoreTier, keys: Sequence[OffloadKey], reason: str) -> None:
        self._manager.demote(tier, keys)
        self._deps.recorder.count(metrics.DEMOTED_BLOCKS, tier.tier_type, reason, by=len(keys))

    def _note_demoted(
        self, tier: StoreTier, taken: Sequence[OffloadKey], refused: Iterable[OffloadKey]
    ) -> None:
        """A write has ended."""
        for key in taken:
            session = self._owner(key)
            if session is not None and session.pause is not None:
                session.pause.demoted[tier.tier_type] += 1
        refused = set(refused)
        if refused:
            self._refused_until_s[tier] = self._deps.clock.monotonic_s() + _REFUSED_FOR_S
        for parking in self._parkings:
            if parking.tier is tier:
                parking.written.extend(parking.in_flight.intersection(taken))
                parking.was_refused |= not parking.in_flight.isdisjoint(refused)
                parking.in_flight.difference_update(taken, refused)
