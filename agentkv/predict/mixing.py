"""Several opinions on one wait made into one: a weighted sum of logarithms.

What: `Mixing`, the weights of views and how they learn. Why: views overlap (a session's own waits,
its last one, its pace), so that their evidence must not simply be multiplied; each weight says how
much of a view's evidence is news. Where: `hierarchical` mixes with it and lets it learn at every
wait.

    log p = log base + sum of weight · log(view / what the view is compared with) + constant

Logarithmic opinion pool (Genest and Zidek, 1986), weights by online gradient of the log score with
AdaGrad steps (Duchi, Hazan, Singer 2011), as in the mixers of context-mixing compressors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from agentkv.predict.histogram import NUM_BINS, Mass

START_WEIGHT = 0.4
_MAX_WEIGHT = 1.5
_RATE = 0.15
_EASE = 4.0  # the squared gradient that the first step is made with

_ONES = np.ones(NUM_BINS)

Evidence = npt.NDArray[np.float64]
"""A row per view: the logarithm of what it says over what it is compared with."""

Slot = tuple[str, str]
"""The name of a view, and the group of places that share its weight."""


class Mixing:
    """Thread-free; as many weights as there are slots, of which there are few."""

    def __init__(self) -> None:
        self._weights: dict[Slot, float] = {}
        self._squares: dict[Slot, float] = {}

    def weight(self, slot: Slot) -> float:
        return self._weights.get(slot, START_WEIGHT)

    def mix(self, log_base: Mass, slots: Sequence[Slot], evidence: Evidence) -> Mass:
        """Sums to 1; a slot per row of evidence."""
        logs = log_base + np.array([self.weight(slot) for slot in slots]) @ evidence
        mass: Mass = np.exp(logs)  # bounded: neither the base nor the evidence is far from 0
        mass *= 1 / float(mass @ _ONES)  # quicker than sum() for so few
        return mass

    def learn(self, slots: Sequence[Slot], evidence: Evidence, mixed: Mass, wait: Mass) -> None:
        """Moves the weights of these slots to where this wait would have been likelier."""
        for slot, gradient in zip(slots, (evidence @ (wait - mixed)).tolist(), strict=True):
            square = self._squares.get(slot, _EASE) + gradient * gradient
            moved = self.weight(slot) + _RATE * gradient / math.sqrt(square)
            self._weights[slot] = min(max(moved, 0.0), _MAX_WEIGHT)
            self._squares[slot] = square

    def dump(self) -> list[tuple[str, str, float, float]]:
        """View, group, weight and squared gradient of each slot; for `load`."""
        return [(*slot, w, self._squares[slot]) for slot, w in self._weights.items()]

    def load(self, rows: Iterable[tuple[str, str, float, float]]) -> None:
        """Whatever the numbers are, the weights stay within their bounds."""
        self._weights.clear()
        self._squares.clear()
        for name, group, weight, square in rows:
            self._weights[name, group] = min(max(weight, 0.0), _MAX_WEIGHT)
            self._squares[name, group] = max(square, _EASE)
