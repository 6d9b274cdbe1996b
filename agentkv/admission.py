"""Admission by program: who may run while the engine computes again what it had computed before.

What: once recomputation takes a large part of the time, programs (sessions) are served in the order
in which they began, as many as keep their KV; the next turns of all others wait.
Why: beyond what pool and DRAM hold, every turn pushes out the KV of the next one, and an engine
that serves everybody computes everything again. Fewer programs at a time finish more of them.
What is limited is the recompute load, not the live KV: the limit falls while the load is too high
and rises while it is low, so that where waits are long and there is time to compute, nobody waits.
Fair: who has waited longest goes first once it has waited `max_wait_s`, one after the other at the
pace at which their KV can be computed again beside everything else.
Where: driven by `connectors.admission_gate` and by the simulator. Knows no engine, takes time from
its clock, decides and acts on nothing.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from agentkv import metrics
from agentkv.clock import Clock
from agentkv.config_admission import AdmissionConfig
from agentkv.metrics import Recorder
from agentkv.sessions import SessionKey

TARGET = 1 / 3  # of the share at which limiting begins: above it the limit falls
CALM = 1 / 6  # below this part of it the limit rises
PACE = 1 / 6  # and so much of it may go to those that have waited too long
_AVERAGE_S = 30.0  # time constant of the recompute load
_SUSTAINED_S = 180.0  # and of the one that must be too high for limiting to begin
_FALL_S = 60.0  # the limit falls to 1/e in this time
_RISE_S = 600.0  # and rises by e in this one
_LEAST = 0.6  # of what pool and DRAM hold: so much KV may be live whatever the load
_ROOM = 0.85  # of the limit: who is not let in yet is so only below it, for contexts grow
_FORGOTTEN_S = 1200.0  # a program that pauses longer does not count until it is back,
_ONCE_S = 60.0  # and one of a single turn, which may be all, no longer than this
_TICK_S = 1.0
_MOST_CHECKED = 1024  # programs of one tick


@dataclass(slots=True)
class _Program:
    """`is_in`: it was let in, and keeps its KV. `num_open`: turns waiting and running."""

    tokens: int
    active_s: float
    is_in: bool = False
    num_turns: int = 0
    num_open: int = 0
    num_running: int = 0


@dataclass(slots=True)
class _Turn:
    """`is_free`: it was let go and may start whatever comes."""

    program: SessionKey
    tokens: int
    is_running: bool = False
    is_free: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Turns that are held back from now on, and those that no longer are, in order."""

    held: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)


_NONE = Changes()


class ProgramAdmission:
    """Owned by the scheduler thread.

    `capacity_tokens`: KV that pool and DRAM hold together. `recompute_s(tokens)`: how long so much
    context takes to compute. `live_tokens()`: KV of all programs, what they share counted once.
    `is_live(program)`: whether it may send another turn.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        clock: Clock,
        recorder: Recorder,
        *,
        capacity_tokens: float,
        recompute_s: Callable[[int], float],
        live_tokens: Callable[[], float],
        is_live: Callable[[SessionKey], bool],
    ) -> None:
        self.load = self.sustained_load = 0.0
        self.limit_tokens = math.inf
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._capacity_tokens = capacity_tokens
        self._recompute_s = recompute_s
        self._live_tokens = live_tokens
        self._is_live = is_live
        self._programs: OrderedDict[SessionKey, _Program] = OrderedDict()  # as they began
        self._turns: dict[str, _Turn] = {}
        self._held: OrderedDict[str, float] = OrderedDict()  # since when
        self._ticked_s = clock.monotonic_s()
        self._pruned_s = self._ticked_s
        self._unchecked: list[SessionKey] = []  # of those that were known then
        self._promote_from_s = -math.inf
        self._spent_s = 0.0
        self._is_stale = False
        self._are_all_in = False  # As nothing limits: thousands need not be walked over then.

    def __len__(self) -> int:
        """Turns held back."""
        return len(self._held)

    @property
    def is_limiting(self) -> bool:
        return math.isfinite(self.limit_tokens)

    def let_all_go(self) -> None:
        """Nobody is held back any more, until much is computed again anew."""
        self.limit_tokens, self.sustained_load = math.inf, 0.0
        self._is_stale = True

    def is_held(self, request_id: str) -> bool:
        return request_id in self._held

    # --- programs ---

    def arrived(self, request_id: str, program: SessionKey, *, prompt_tokens: int) -> None:
        """A turn came and waits for blocks; `review` says whether it is held back."""
        now_s = self._clock.monotonic_s()
        known = self._programs.setdefault(program, _Program(prompt_tokens, now_s))
        known.tokens, known.active_s = prompt_tokens, now_s
        known.is_in |= self._are_all_in
        known.num_turns += 1
        known.num_open += 1
        self._turns[request_id] = _Turn(program, prompt_tokens)
        self._is_stale = True

    def started(self, request_id: str) -> None:
        """The turn has its blocks; it runs to its end, whatever happens."""
        turn = self._turns.get(request_id)
        program = self._programs.get(turn.program) if turn is not None else None
        if turn is None or program is None or turn.is_running:
            return
        turn.is_running = True
        program.num_running += 1

    def finished(self, request_id: str, *, context_tokens: int) -> None:
        """The turn is over, whether it ran or not."""
        turn = self._turns.pop(request_id, None)
        self._held.pop(request_id, None)
        program = self._programs.get(turn.program) if turn is not None else None
        if turn is None or program is None:
            return
        program.num_running -= turn.is_running
        program.num_open -= 1
        program.tokens = max(program.tokens, context_tokens)
        program.active_s = self._clock.monotonic_s()
        self._is_stale = True

    # --- time ---

    def recomputed(self, seconds: float) -> None:
        """A step took so long for what had been computed before."""
        self._spent_s += seconds

    def review(self, *, is_idle: bool) -> Changes:
        """Who is held back from now on, and who no longer is. To be asked after each step and
        arrival. `is_idle`: nothing runs, and nothing waits that is not held back.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._ticked_s >= _TICK_S:
            self._tick(now_s)
        if not self._is_stale and not (is_idle and self._held):
            return _NONE
        self._is_stale = False
        changes = self._compare(now_s)
        if is_idle and not changes.released and self._held:
            first = min(self._held, key=self._held.__getitem__)
            self._let_go(first, now_s)
            changes.released.append(first)
        return changes

    # --- parts ---

    def _tick(self, now_s: float) -> None:
        passed_s = now_s - self._ticked_s
        self._ticked_s = now_s
        now_load = min(1.0, self._spent_s / passed_s)
        self._spent_s = 0.0
        self.load += -math.expm1(-passed_s / _AVERAGE_S) * (now_load - self.load)
        longer = -math.expm1(-passed_s / _SUSTAINED_S)
        self.sustained_load += longer * (now_load - self.sustained_load)
        if self.is_limiting or self.sustained_load > self._config.max_recompute_share:
            self._set_limit(passed_s, sum(program.tokens for program in self._counted(now_s)))
            self._promote_overdue(now_s)
        self._recorder.gauge(metrics.ADMISSION_WAITING, value=len(self._held))
        self._recorder.gauge(metrics.RECOMPUTE_LOAD, value=self.load)
        self._is_stale |= self.is_limiting
        if not self._unchecked and now_s - self._pruned_s > _ONCE_S:
            self._pruned_s = now_s
            self._unchecked = [*reversed(self._programs)]
        self._prune(now_s)

    def _set_limit(self, passed_s: float, counted_tokens: int) -> None:
        most = self._config.max_recompute_share
        if not self.is_limiting:
            self.limit_tokens = counted_tokens
            self._is_stale = True
        elif self.load > TARGET * most:
            limit = min(self.limit_tokens, counted_tokens) * math.exp(-passed_s / _FALL_S)
            self.limit_tokens = max(limit, _LEAST * self._capacity_tokens / self._distinct_share())
        elif self.load < CALM * most:
            self.limit_tokens *= math.exp(passed_s / _RISE_S)
            if not self._held and self.limit_tokens > counted_tokens:
                self.limit_tokens, self.sustained_load = math.inf, 0.0

    def _distinct_share(self) -> float:
        """Of the tokens of all programs, those that are not another one's too."""
        total = sum(program.tokens for program in self._programs.values())
        return min(1.0, max(0.1, self._live_tokens() / max(1, total)))

    def _promote_overdue(self, now_s: float) -> None:
        """Whoever has waited longest comes first, if that is too long and the last one computed."""
        if not self._held or now_s < self._promote_from_s:
            return
        request_id = min(self._held, key=self._held.__getitem__)
        if now_s - self._held[request_id] < self._config.max_wait_s:
            return
        turn = self._turns[request_id]
        self._programs.move_to_end(turn.program, last=False)
        self._programs[turn.program].is_in = True
        pace = PACE * self._config.max_recompute_share
        self._promote_from_s = now_s + self._recompute_s(turn.tokens) / pace

    def _counted(self, now_s: float) -> list[_Program]:
        """Programs whose KV should stay, in the order in which they began."""
        return [p for name, p in self._programs.items() if self._is_counted(name, p, now_s)]

    def _is_counted(self, name: SessionKey, program: _Program, now_s: float) -> bool:
        if program.num_open:
            return True
        longest_s = _FORGOTTEN_S if program.num_turns > 1 else _ONCE_S
        return now_s - program.active_s < longest_s and self._is_live(name)

    def _prune(self, now_s: float) -> None:
        """Forgets programs that do not count any more; of thousands some with every tick."""
        for _ in range(min(len(self._unchecked), _MOST_CHECKED)):
            name = self._unchecked.pop()
            program = self._programs.get(name)
            if program is not None and not self._is_counted(name, program, now_s):
                del self._programs[name]

    def _compare(self, now_s: float) -> Changes:
        """Holds back and lets go until those held are those beyond the limit."""
        changes = Changes()
        self._choose(now_s)
        for request_id, turn in self._turns.items():
            if turn.is_running:
                continue
            program = self._programs[turn.program]
            is_let_in = turn.is_free or program.is_in or program.num_running > 0
            if is_let_in and request_id in self._held:
                self._let_go(request_id, now_s)
                changes.released.append(request_id)
            elif not is_let_in and request_id not in self._held:
                self._held[request_id] = now_s
                changes.held.append(request_id)
                self._recorder.count(metrics.ADMISSION_DELAYED)
        return changes

    def _choose(self, now_s: float) -> None:
        """Who is in stays while all of them fit, the first first; others come in while there is
        room for what contexts will grow.
        """
        if self._are_all_in and not self.is_limiting:
            return
        self._are_all_in = not self.is_limiting
        used, outside = 0, []
        for program in self._counted(now_s):
            if program.is_in and (used == 0 or used + program.tokens <= self.limit_tokens):
                used += program.tokens
            else:
                program.is_in = False
                outside.append(program)
        for program in outside:
            if used > 0 and used + program.tokens > _ROOM * self.limit_tokens:
                break
            program.is_in = True
            used += program.tokens

    def _let_go(self, request_id: str, now_s: float) -> None:
        waited_s = now_s - self._held.pop(request_id)
        self._turns[request_id].is_free = True
        self._recorder.sample(metrics.ADMISSION_WAIT, value=waited_s)
