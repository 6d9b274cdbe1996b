"""Brings the KV of paused sessions back to the pool before their turns arrive.

    after a step: whose time has come? ─► room for it ─► with the next step's metadata: load begins
    load received ─► cached in the pool, free but last to go ─► the turn finds a local hit

Why in two halves: room is made between steps, blocks may only be taken when a step's own
allocations are done. The choice is `agentkv.prefetch`, the loading `pool_load`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.request import Request

from agentkv import metrics
from agentkv.appraisal import Deps
from agentkv.config import PrefetchConfig
from agentkv.controller import Controller
from agentkv.geometry import KvFootprint
from agentkv.prefetch import AwayPause, PrefetchBook, Rests, Trigger, Wanted, choose
from agentkv.sessions import OpenPause, Pause, Session, SessionKey, Turn

from .kept_prefix import KeptPrefixes, keep
from .layout import Layout
from .pool_load import LATER, NOTHING, PoolLoad, PoolLoader
from .pool_order import PoolOrder
from .return_times import ReturnTimes
from .room import Room

_CONSIDER_EVERY_S = 0.02
_LOOKS = 32
_FULL_S = 0.1  # Where one has found no room, no other is tried by prediction for so long.
_TRIGGERS = tuple(Trigger)  # the first goes first
_MAX_STARTS = 8  # of one step; the others' turn comes with the next ones


class Prefetcher:
    """Owned by the scheduler thread. Does nothing until `attach`."""

    def __init__(
        self,
        controller: Controller,
        deps: Deps,
        room: Room,
        config: PrefetchConfig,
        layout: Layout,
        kept: KeptPrefixes,
    ) -> None:
        self._controller = controller
        self._deps = deps
        self._room = room
        self._config = config
        self._layout = layout
        self._kept = kept
        controller.on_ended = self.forget
        self._book = PrefetchBook(deps.recorder)
        self._loader: PoolLoader | None = None
        self._wanted: list[Wanted] = []
        self._loading: dict[str, Wanted] = {}
        self._bytes_loading = 0.0
        self._failed: set[str] = set()
        self._considered_at_s = self._full_until_s = 0.0
        self._times = ReturnTimes(controller.pauses, deps, self._book.was_brought)
        self._rests = Rests()
        self.starting: Session | None = None  # Whose KV is being looked up just now.

    def attach(self, loader: PoolLoader) -> None:
        if self._config.enabled:
            self._loader = loader

    @property
    def is_enabled(self) -> bool:
        return self._config.enabled

    @property
    def has_wanted(self) -> bool:
        return bool(self._wanted)

    # --- what happens ---

    def note_finished(self, request: Request, session: Session) -> None:
        """A turn ended: what is needed to load or to store its KV without it."""
        if session.pause is None:
            return
        prefix = keep(request, self._layout.tokens_per_hash)
        if prefix is not None:
            self._kept.put(session.key, prefix)

    def note_scheduled(self, turn: Turn, gpu_hit_tokens: int) -> None:
        """A turn got its blocks."""
        self._book.resumed(turn, gpu_hit_tokens)

    def note_signal(self) -> None:
        """A client said something: look again after this step."""
        self._considered_at_s = 0.0

    def look_again(self) -> None:
        """There may be room now, or blocks that others waited for: in the pool, or in DRAM."""
        self._considered_at_s = self._full_until_s = 0.0
        self._rests.clear()

    def forget(self, session: Session) -> None:
        """A session ended."""
        self._book.drop(session.key)
        self._kept.drop(session.key)
        self._times.drop(session)

    def tidy(self) -> None:
        """Once in a while: who found no room may have more luck."""
        self._rests.clear()

    def clear(self) -> None:
        """The engine dropped its caches."""
        self._kept.clear()
        self._book.clear()
        self._wanted.clear()
        self._times.clear()

    def next_look_s(self) -> float | None:
        """Seconds until time alone changes whose KV is wanted; None if it does not.

        Not for a pause whose time has come in vain: what changes that are steps, not time. A
        message to an idle engine is not free, vLLM's workers spin for a second after each.
        """
        if self._loader is None:
            return None
        return self._times.next_s(self._deps.clock.monotonic_s(), _LOOKS)

    # --- step by step ---

    def consider(self, order: PoolOrder, *, num_waiting: int) -> None:
        """A step is over: whose KV to bring back with the next one."""
        now_s = self._deps.clock.monotonic_s()
        if self._loader is None or now_s - self._considered_at_s < _CONSIDER_EVERY_S:
            return
        self._considered_at_s = now_s
        due = [] if now_s < self._full_until_s else self._times.due(now_s, _LOOKS)
        found = self._candidates([*due, *self._controller.pauses.next_done(_LOOKS)])
        idle = {} if num_waiting else self._idle(order)
        pauses = [*{**idle, **found}.values()] if idle else _first(found.values())
        away = [self._away_pause(session, pause, now_s) for session, pause in pauses]
        room_blocks = 0
        if idle:
            most = sum(sorted(pause.num_blocks for pause in away)[:_MAX_STARTS])
            room_blocks = self._headroom(order, most)
        is_dram_short = self._controller.pauses.is_dram_short(now_s)
        chosen = choose(away, room_blocks=room_blocks, is_dram_short=is_dram_short)
        self._wanted.extend(chosen[:_MAX_STARTS])

    def start(self, order: PoolOrder) -> None:
        """The next step's own allocations are done: loads begin."""
        wanted, self._wanted = self._wanted, []
        is_full = False  # And then for all that return later, too.
        for each in sorted(wanted, key=lambda each: _TRIGGERS.index(each.trigger)):
            if self._bytes_loading < self._config.max_in_flight_bytes:
                is_full = is_full or not self._start(order, each)
                if is_full:
                    now_s = self._deps.clock.monotonic_s()
                    self._rests.begin(each, now_s)
                    if each.trigger is not Trigger.HEADROOM:  # That takes nobody's room.
                        self._full_until_s = now_s + _FULL_S

    def receive(self, request_ids: Iterable[str], failed: Iterable[str]) -> None:
        """Finishes our loads among the received ones.

        A rank may report a load as failed before the last one reports it as received.
        """
        if self._loader is None or not self._loading:
            return
        self._failed.update(self._loading.keys() & set(failed))
        loads = self._loader.take_received(request_ids)
        for load in loads:  # The blocks first: what follows is bookkeeping.
            self._hand_over(load)
        for load in loads:
            self._settle(load)

    # --- parts ---

    def _idle(self, order: PoolOrder) -> dict[SessionKey, OpenPause]:
        """Of all that were given up the next ones, if there is room that nobody needs."""
        idle = self._candidates(self._controller.pauses.next_away(_LOOKS))
        return idle if idle and self._headroom(order, 1) else {}

    def _candidates(self, pauses: Iterable[OpenPause]) -> dict[SessionKey, OpenPause]:
        """Those that there is something to bring of, and that are not tried just now."""
        now_s = self._deps.clock.monotonic_s()
        begun = {each.session.key for each in (*self._loading.values(), *self._wanted)}
        return {
            session.key: (session, pause)
            for session, pause in pauses
            if not pause.is_fetched
            and not self._rests.hold_back(session, pause, now_s)
            and session.key not in begun
            and self._kept.get(session.key) is not None
        }

    def _away_pause(self, session: Session, pause: Pause, now_s: float) -> AwayPause:
        return AwayPause(
            session=session,
            num_blocks=self._layout.blocks(pause.context_tokens),
            start_in_s=self._times.start_s(pause) - now_s,
            returns_in_s=pause.returns_at_s - now_s,
            is_tool_done=pause.tool_done_s is not None,
            was_brought=self._book.was_brought(session),
        )

    def _headroom(self, order: PoolOrder, most: int) -> int:
        num_reserved = int(self._config.reserve_fraction * order.num_blocks)
        return self._room.worthless_beyond(order, num_reserved, most)

    def _start(self, order: PoolOrder, wanted: Wanted) -> bool:
        """Begins a load if there is something to load; False if the pool has no room for it."""
        session, pause = wanted.session, wanted.session.pause
        prefix = self._kept.get(session.key)
        if self._loader is None or pause is None or prefix is None:
            return True
        num_cached = order.cached_depth(prefix.block_hashes) * self._layout.tokens_per_hash
        num_missing = len(prefix.token_ids) - num_cached
        is_worth_it = len(prefix.token_ids) >= self._controller.appraiser.min_load_tokens()
        if num_missing <= 0 or not is_worth_it:
            pause.is_fetched = True
            return True
        num_blocks = self._make_room(order, wanted, pause, self._layout.blocks(num_missing))
        if num_blocks <= 0:
            return False
        self.starting = session
        load = self._loader.start(prefix, max_tokens=self._max_tokens(num_blocks, num_missing))
        self.starting = None
        if isinstance(load, PoolLoad):
            self._note_started(wanted, load)
        elif load is LATER:
            self._rests.begin(wanted, self._deps.clock.monotonic_s())
        pause.is_fetched = load is NOTHING
        return True

    def _make_room(self, order: PoolOrder, wanted: Wanted, pause: Pause, num_blocks: int) -> int:
        """How many blocks may be taken now, up to `num_blocks`."""
        # What is still there of it would otherwise be among the first to go.
        order.protect([self._controller.sessions.all_blocks(wanted.session)])
        if wanted.trigger is Trigger.HEADROOM:
            return self._headroom(order, num_blocks)
        after_s = self._deps.clock.monotonic_s()
        if wanted.trigger is Trigger.PREDICTED:
            after_s = max(after_s, pause.returns_at_s)
        return self._room.for_return(order, wanted.session, num_blocks=num_blocks, after_s=after_s)

    def _max_tokens(self, num_blocks: int, num_missing: int) -> int:
        """So many tokens fit in the blocks and in what may be on its way."""
        fitting = self._layout.tokens_in(num_blocks, num_missing)
        bytes_left = self._config.max_in_flight_bytes - self._bytes_loading
        per_token = self._deps.footprint.bytes_for(max(1, num_missing)) / max(1, num_missing)
        return int(min(fitting, max(self._layout.tokens_per_hash, bytes_left / per_token)))

    def _note_started(self, wanted: Wanted, load: PoolLoad) -> None:
        kv_bytes = _kv_bytes(self._deps.footprint, load)
        self._loading[load.request_id] = wanted
        self._bytes_loading += kv_bytes
        self._book.start(wanted.session, wanted.trigger, load.start_tokens, kv_bytes)
        num_tokens = load.end_tokens - load.start_tokens
        self._deps.recorder.count(metrics.PREFETCHED_TOKENS, by=num_tokens)

    def _hand_over(self, load: PoolLoad) -> None:
        """To the pool. What failed, or nobody needs any more, is not cached: it goes first."""
        assert self._loader is not None
        wanted = self._loading.get(load.request_id)
        is_known = wanted is not None and self._is_known(wanted.session)
        self._loader.finish(load, is_good=is_known and load.request_id not in self._failed)

    def _settle(self, load: PoolLoad) -> None:
        wanted = self._loading.pop(load.request_id)
        session = wanted.session
        is_good = load.request_id not in self._failed
        self._failed.discard(load.request_id)
        kv_bytes = _kv_bytes(self._deps.footprint, load)
        self._bytes_loading = max(0.0, self._bytes_loading - kv_bytes)
        self._room.note_change()
        self._book.finish(session.key, self._deps.clock.monotonic_s(), is_good=is_good)
        if is_good and self._is_known(session):
            self._controller.pauses.take_back(session)
            self._wanted.append(wanted)  # More of it may be missing: the load was bounded.
            self.look_again()
        elif session.pause is not None:
            self._times.put(session, session.pause)

    def _is_known(self, session: Session) -> bool:
        return self._controller.sessions.get(session.key) is session


def _kv_bytes(footprint: KvFootprint, load: PoolLoad) -> float:
    return footprint.bytes_for(load.end_tokens) - footprint.bytes_for(load.start_tokens)


def _first(pauses: Iterable[OpenPause]) -> list[OpenPause]:
    """As many as can start, in the order in which `choose` has them start."""
    order = sorted(pauses, key=lambda each: (each[1].tool_done_s is None, each[1].returns_at_s))
    return order[:_MAX_STARTS]
