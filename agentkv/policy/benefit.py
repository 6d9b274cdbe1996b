"""Whether ranking by prediction pays here: measured, and switched off where it does not.

What: two imaginary pools see every pause of a sample of sessions. One gives up by the predicted
worth, the other by age alone. When a session returns that only one of them still has, that one has
saved its delay. Why imaginary pools: they count what matters, the delay of losses, whichever of the
two orders the real pool follows; a score of the predictions themselves would not tell whether their
errors hurt. Where: the controller tells of pauses, returns, ends and pressure, and asks before it
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from zlib import crc32

from agentkv.policy.base import Decision, PauseView
from agentkv.policy.ranking import (
    copy_worth_by_age,
    copy_worth_now,
    worth_by_age,
    worth_now,
)
from agentkv.policy.release import release_of

_LEAST_EVIDENCE = 16  # returns that only one of the two pools still had
_ON_FROM, _OFF_BELOW = 1.5, 0.0  # standard errors of the mean saving
_OFF_AT_ONCE = -2.0  # however little was seen
_MEMORY = 0.99  # of the evidence with every such return: the last two hundred count
_PACE = 0.1  # of the pool's size towards what was seen last


@dataclass(slots=True)
class _Shadow:
    """A pause in the imaginary pools, as decided last."""

    decision: Decision
    started_s: float
    decided_age_s: float
    kv_bytes: int
    loss_s: float


@dataclass(frozen=True, slots=True)
class _Pool:
    """The pauses that a pool of this order would still have. `pauses` is its own."""

    worth: Callable[..., float]
    pauses: dict[Hashable, _Shadow]

    def shrink(self, room_bytes: float, now_s: float) -> None:
        """Gives up by worth until the rest fits."""
        if math.isinf(room_bytes):
            return
        total_bytes = sum(shadow.kv_bytes for shadow in self.pauses.values())
        if total_bytes <= room_bytes:
            return
        for key in sorted(self.pauses, key=lambda key: self._worth(self.pauses[key], now_s)):
            total_bytes -= self.pauses.pop(key).kv_bytes
            if total_bytes <= room_bytes:
                return

    def _worth(self, shadow: _Shadow, now_s: float) -> float:
        return self.worth(
            shadow.decision,
            decided_age_s=shadow.decided_age_s,
            age_s=now_s - shadow.started_s,
        )


class RankingBenefit:
    """Owned by the controller; memory is bounded by `max_pauses` pauses. `of_copies`: the memory is
    the pool and DRAM together, from which a loss is computed again.

    Begins with True, so that what clients state counts from the first pause; a wrong order is seen
    after a handful of returns.
    """

    def __init__(self, max_pauses: int = 128, *, of_copies: bool = False) -> None:
        self._max_pauses = max_pauses
        self._one_in = 1
        self._room_bytes = math.inf
        self._open: dict[Hashable, _Shadow] = {}
        self._of_copies = of_copies
        self._by_worth = _Pool(copy_worth_now if of_copies else worth_now, {})
        self._by_age = _Pool(copy_worth_by_age if of_copies else worth_by_age, {})
        self._saved_s = self._spread = 0.0
        self.num_differences = 0
        self.is_worth_it = True

    def note_pressure(self, kept_bytes: float) -> None:
        """Blocks are needed while paused sessions keep so many bytes in the pool: its size."""
        if math.isinf(self._room_bytes):
            self._room_bytes = kept_bytes
        self._room_bytes += _PACE * (kept_bytes - self._room_bytes)

    def note_decided(self, key: Hashable, view: PauseView, decision: Decision) -> None:
        """A pause was decided, for the first time or anew. One without a worth is not followed."""
        if decision.keep_value is None or not self._is_sampled(key):
            return
        shadow = self._open.get(key)
        if shadow is not None:
            shadow.decision, shadow.decided_age_s = decision, view.age_s
            shadow.loss_s = self._loss_s(view)
            return
        shadow = _Shadow(
            decision,
            view.now_s - view.age_s,
            view.age_s,
            max(1, view.kv_bytes),
            self._loss_s(view),
        )
        for pauses in (self._open, self._by_worth.pauses, self._by_age.pauses):
            pauses[key] = shadow
        for pool in (self._by_worth, self._by_age):
            pool.shrink(self._room_bytes / self._one_in, view.now_s)
        if len(self._open) > self._max_pauses:
            self._thin_out()

    def note_returned(self, key: Hashable) -> None:
        """The next turn is here: what each pool would have saved is counted."""
        shadow = self._open.get(key)
        if shadow is None:
            return
        is_kept, would_be_kept = key in self._by_worth.pauses, key in self._by_age.pauses
        self.note_ended(key)
        if is_kept == would_be_kept:
            return
        saved_s = shadow.loss_s if is_kept else -shadow.loss_s
        self.num_differences += 1
        self._saved_s = _MEMORY * self._saved_s + saved_s
        self._spread = _MEMORY**2 * self._spread + saved_s**2
        self.is_worth_it = self._judge()

    def note_ended(self, key: Hashable) -> None:
        """No turn will follow: keeping it saved nothing."""
        for pauses in (self._open, self._by_worth.pauses, self._by_age.pauses):
            pauses.pop(key, None)
        if self._one_in > 1 and len(self._open) < self._max_pauses // 8:
            self._one_in //= 2

    @property
    def score(self) -> float:
        """What predictions save over age alone, in standard errors; 0 before the first evidence."""
        return self._saved_s / math.sqrt(self._spread) if self._spread > 0 else 0.0

    def _loss_s(self, view: PauseView) -> float:
        release = release_of(view)
        return release.recompute_s if self._of_copies else release.loss_s

    def _judge(self) -> bool:
        if self.score < _OFF_AT_ONCE:
            return False
        if self.num_differences < _LEAST_EVIDENCE:
            return self.is_worth_it
        return self.score > (_OFF_BELOW if self.is_worth_it else _ON_FROM)

    def _is_sampled(self, key: Hashable) -> bool:
        return self._one_in == 1 or crc32(repr(key).encode()) % self._one_in == 0

    def _thin_out(self) -> None:
        """Follows half as many sessions from now on, in pools of half the size."""
        self._one_in *= 2
        for key in [key for key in self._open if not self._is_sampled(key)]:
            for pauses in (self._open, self._by_worth.pauses, self._by_age.pauses):
                pauses.pop(key, None)
