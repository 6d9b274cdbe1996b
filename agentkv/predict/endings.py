"""The chance that a session has ended without saying so: no turn will follow its last one.

What: `Endings`, counts of pauses that ended in a turn and of those abandoned, for humans and for
tools apart. Why: knowing that a session ended is worth more than any estimate of its wait, and a
wait that was given up must not be learned as a very long one. Where: part of `hierarchical`.

A cure model (Boag 1949): a share of the pauses never ends, the others follow the distribution. One
abandoned at age c was over with the chance share / (share + (1 - share)·P(wait > c)); the rest of
it counts as a wait above c (one step of EM per pause).
"""

from __future__ import annotations

_NUM_ASSUMED = 100.0
_SHARE_ASSUMED = {False: 0.005, True: 0.1}
_MAX_WEIGHT = 2000.0
_MAX_SHARE = 0.5
# An open pause far beyond those known at its place may be an approval or a stall instead.
_LEAST_OUTLIVED = 0.05


class Endings:
    """Thread-free; `is_human` tells whether a person is waited for."""

    def __init__(self) -> None:
        self._num_ended = {False: 0.0, True: 0.0}
        self._num = {False: 0.0, True: 0.0}

    def add(self, *, is_human: bool, ended: float) -> None:
        """One more pause; `ended` is the chance that it was the session's end."""
        if self._num[is_human] > _MAX_WEIGHT:
            self._num[is_human] *= 0.5
            self._num_ended[is_human] *= 0.5
        self._num[is_human] += 1
        self._num_ended[is_human] += ended

    def share(self, *, is_human: bool) -> float:
        """Of the pauses of this kind that never end; at most one half."""
        assumed = _NUM_ASSUMED * _SHARE_ASSUMED[is_human]
        share = (self._num_ended[is_human] + assumed) / (self._num[is_human] + _NUM_ASSUMED)
        return min(share, _MAX_SHARE)

    def chance(self, *, is_human: bool, outlived: float) -> float:
        """That an open pause never ends, as it has outlived all but a share of its kind."""
        return self.chance_over(is_human=is_human, outlived=max(outlived, _LEAST_OUTLIVED))

    def chance_over(self, *, is_human: bool, outlived: float) -> float:
        """That a pause was the session's end, now that its session was given up."""
        share = self.share(is_human=is_human)
        return share / (share + (1 - share) * max(outlived, 0.0))

    def dump(self) -> tuple[float, float, float, float]:
        """Ended pauses and all, of tools and of humans; for `load`."""
        return (self._num_ended[False], self._num[False], self._num_ended[True], self._num[True])

    def load(self, counts: tuple[float, float, float, float]) -> None:
        """No more of them have ended than there were."""
        ended, num, human_ended, human_num = counts
        self._num_ended = {False: min(ended, num), True: min(human_ended, human_num)}
        self._num = {False: num, True: human_num}
