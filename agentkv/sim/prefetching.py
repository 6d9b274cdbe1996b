"""Brings the KV of pauses back to the pool before their turns: as `connectors.prefetcher`.

The choice is the real `agentkv.prefetch.choose` and the outcomes are counted by the real
`PrefetchBook`; the times at which a prediction wants something begin an event each.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from agentkv.appraisal import Deps
from agentkv.config import PrefetchConfig
from agentkv.controller import Controller
from agentkv.cost_model import prefetch_start_s
from agentkv.prefetch import AwayPause, PrefetchBook, Rests, Trigger, Wanted, choose
from agentkv.sessions import OpenPause, Pause, Session, SessionKey, Turn
from agentkv.sim.machine import Machine, Request
from agentkv.sim.room import Room
from agentkv.sim.tally import Tally

_EVERY_S = 0.02
_LOOKS = 32
_MAX_STARTS = 8
_FORGET_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class _Load:
    wanted: Wanted
    blocks: list[bytes]
    num_bytes: float


class Prefetching:
    """Owned by the managed keeper."""

    def __init__(
        self,
        machine: Machine,
        controller: Controller,
        deps: Deps,
        config: PrefetchConfig,
        tally: Tally,
    ) -> None:
        self.room: Room
        self._machine = machine
        self._controller = controller
        self._deps = deps
        self._config = config
        self._tally = tally
        self._book = PrefetchBook(deps.recorder)
        # All blocks of each paused session.
        self.chains: dict[SessionKey, list[bytes]] = {}
        self._due_heap: list[tuple[float, int, Session]] = []
        self._due: dict[SessionKey, Session] = {}
        self._wanted: list[Wanted] = []
        self._loading: dict[SessionKey, Session] = {}
        self._bytes_loading = 0.0
        self._considered_at_s = -math.inf
        self._tidied_at_s = -math.inf
        self._rests = Rests()
        # Blocks brought for the pause that is open: (pause, first, end).
        self._brought: dict[SessionKey, tuple[int, int, int]] = {}

    # --- what happens ---

    def note_finished(self, session: Session, chain: list[bytes]) -> None:
        if session.pause is not None:
            self.chains[session.key] = chain
        else:
            self.chains.pop(session.key, None)

    def note_scheduled(self, turn: Turn, request: Request, *, pause: Pause | None) -> None:
        """A turn got its blocks: what was brought for it is judged."""
        self._book.resumed(turn, request.gpu_hit * self._machine.block_tokens)
        brought = self._brought.pop(turn.session.key, None)
        if brought is None or pause is None or brought[0] != pause.pause_id:
            return
        num_hidden = max(0, min(request.gpu_hit, brought[2]) - brought[1])
        if self._tally.is_on:
            seconds = (
                num_hidden * self._machine.block_bytes / self._machine.profile.load_bytes_per_s
            )
            self._tally.hidden_reload_s += seconds

    def note_given_up(self, session: Session) -> None:
        """Its blocks left the pool, or may: when to bring them back is known."""
        pause = session.pause
        if pause is None or not self._config.enabled:
            return
        start_s = pause.started_s + self._start_s(pause)
        heapq.heappush(self._due_heap, (start_s, pause.pause_id, session))
        if start_s > self._machine.now_s:
            self._machine.events.push(start_s, _look)

    def note_signal(self) -> None:
        self._considered_at_s = -math.inf

    def tidy(self) -> None:
        self._rests.clear()
        if self._machine.now_s - self._tidied_at_s < _FORGET_EVERY_S:
            return
        self._tidied_at_s = self._machine.now_s
        sessions = self._controller.sessions
        self._book.drop_ended(lambda key: sessions.get(key) is not None)
        for key in [key for key in self.chains if sessions.get(key) is None]:
            del self.chains[key]
            self._brought.pop(key, None)

    # --- step by step ---

    def after_step(self, *, num_waiting: int) -> None:
        """Whose KV to bring back now, and the loads that begin."""
        if self._config.enabled:
            self._consider(num_waiting)
            wanted, self._wanted = self._wanted, []
            for each in wanted:
                if self._bytes_loading < self._config.max_in_flight_bytes:
                    self._start(each)

    def _consider(self, num_waiting: int) -> None:
        now_s = self._machine.now_s
        if now_s - self._considered_at_s < _EVERY_S:
            return
        self._considered_at_s = now_s
        timed = self._timed(now_s)
        reserve = int(self._config.reserve_fraction * self._machine.pool.num_blocks)
        idle: list[AwayPause] = []
        if not num_waiting and self.room.worthless_beyond(reserve, 1):
            pauses = self._controller.pauses.next_away(_LOOKS)
            known = {pause.session.key for pause in timed}
            idle = [p for p in self._away_pauses(pauses, now_s) if p.session.key not in known]
        away = timed + idle
        if not away:
            return
        room_blocks = 0
        if idle:
            most = sum(sorted(pause.num_blocks for pause in away)[:_MAX_STARTS])
            room_blocks = self.room.worthless_beyond(reserve, most)
        is_dram_short = self._controller.pauses.is_dram_short(now_s)
        chosen = choose(away, room_blocks=room_blocks, is_dram_short=is_dram_short)
        self._wanted.extend(chosen[:_MAX_STARTS])

    def _timed(self, now_s: float) -> list[AwayPause]:
        """Pauses whose tool is done, and those whose time has come."""
        while self._due_heap and self._due_heap[0][0] <= now_s:
            _, pause_id, session = heapq.heappop(self._due_heap)
            if session.pause is not None and session.pause.pause_id == pause_id:
                self._due[session.key] = session
        done = self._controller.pauses.next_done(_LOOKS)
        found = {session.key: (session, pause) for session, pause in done}
        for key, session in list(self._due.items()):
            pause = session.pause
            if pause is None or pause.is_fetched or not pause.is_given_up:
                del self._due[key]
            elif self._book.was_brought(session):
                del self._due[key]  # Once is enough: `choose` waits for its tool to be done.
            else:
                found[key] = (session, pause)
        return self._away_pauses(found.values(), now_s, are_due=True)

    def _away_pauses(
        self, pairs: Iterable[OpenPause], now_s: float, *, are_due: bool = False
    ) -> list[AwayPause]:
        begun = self._loading.keys() | {each.session.key for each in self._wanted}
        return [
            self._away_pause(session, pause, now_s, is_due=are_due)
            for session, pause in pairs
            if not pause.is_fetched
            and not self._rests.hold_back(session, pause, now_s)
            and session.key not in begun
            and session.key in self.chains
        ]

    def _away_pause(
        self, session: Session, pause: Pause, now_s: float, *, is_due: bool
    ) -> AwayPause:
        start_in_s = 0.0 if is_due else pause.started_s + self._start_s(pause) - now_s
        return AwayPause(
            session=session,
            num_blocks=-(-pause.context_tokens // self._machine.block_tokens),
            start_in_s=start_in_s,
            returns_in_s=pause.returns_at_s - now_s,
            is_tool_done=pause.tool_done_s is not None,
            was_brought=self._book.was_brought(session),
        )

    def _start_s(self, pause: Pause) -> float:
        kv_bytes = self._deps.footprint.bytes_for(pause.context_tokens)
        load_s = self._deps.costs.reload_s(kv_bytes) + pause.slow_s
        return prefetch_start_s(pause.early_at_s - pause.started_s, load_s)

    def _start(self, wanted: Wanted) -> None:
        session, pause = wanted.session, wanted.session.pause
        chain = self.chains.get(session.key)
        if pause is None or chain is None:
            return
        machine = self._machine
        depth = machine.pool.cached_depth(chain, len(chain))
        num_missing = len(chain) - depth
        least = self._controller.appraiser.min_load_tokens()
        if num_missing <= 0 or len(chain) * machine.block_tokens < least:
            pause.is_fetched = True
            return
        num_blocks = min(self._make_room(wanted, pause, chain, num_missing), self._most_blocks())
        if num_blocks <= 0:
            self._rests.begin(wanted, machine.now_s)
            return
        end = machine.dram.hit_depth(chain, depth, depth + num_blocks)
        if end == depth:
            pause.is_fetched = True
        else:
            self._begin(wanted, pause, chain, depth, end)

    def _make_room(self, wanted: Wanted, pause: Pause, chain: list[bytes], num_blocks: int) -> int:
        self._machine.pool.protect(reversed(chain))
        if wanted.trigger is Trigger.HEADROOM:
            reserve = int(self._config.reserve_fraction * self._machine.pool.num_blocks)
            return self.room.worthless_beyond(reserve, num_blocks)
        after_s = self._machine.now_s
        if wanted.trigger is Trigger.PREDICTED:
            after_s = max(after_s, pause.returns_at_s)
        return self.room.for_return(wanted.session, num_blocks=num_blocks, after_s=after_s)

    def _most_blocks(self) -> int:
        left = self._config.max_in_flight_bytes - self._bytes_loading
        return max(1, int(left / self._machine.block_bytes))

    def _begin(
        self, wanted: Wanted, pause: Pause, chain: list[bytes], depth: int, end: int
    ) -> None:
        session, machine = wanted.session, self._machine
        blocks = chain[depth:end]
        machine.pool.reserve(len(blocks))
        done_s = machine.load(blocks)
        load = _Load(wanted, blocks, len(blocks) * machine.block_bytes)
        self._loading[session.key] = session
        self._bytes_loading += load.num_bytes
        self._book.start(session, wanted.trigger, depth * machine.block_tokens, load.num_bytes)
        before = self._brought.get(session.key)
        first = before[1] if before is not None and before[0] == pause.pause_id else depth
        self._brought[session.key] = (pause.pause_id, min(first, depth), end)
        machine.events.push(done_s, lambda: self._loaded(load))

    def _loaded(self, load: _Load) -> None:
        session = load.wanted.session
        is_known = self._controller.sessions.get(session.key) is session
        is_paused = is_known and session.pause is not None
        self._machine.pool.fill_reserved(load.blocks, is_paused=is_paused)
        self._bytes_loading = max(0.0, self._bytes_loading - load.num_bytes)
        self._loading.pop(session.key, None)
        self.room.note_change()
        self._book.finish(session.key, self._machine.now_s, is_good=True)
        if is_known:
            self._controller.pauses.take_back(session)
            self._wanted.append(load.wanted)
            self._considered_at_s = -math.inf
            self._rests.clear()


def _look() -> None:
    """An event that only ends a jump over decode steps."""
