"""The seam between the engine and what decides about KV.

What: `Keeper`, what the engine tells and asks; `NativeKeeper`, vLLM's own offloading.
Why: the engine runs the same for every policy, so that only decisions differ. Where: `managed` has
the keeper around the real controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentkv.sim.machine import Machine, Request
from agentkv.sim.offloading import Offloading


class Keeper(Protocol):
    """Told of everything in the order in which vLLM would tell a connector."""

    def arrived(self, request: Request, true_wait_s: float) -> None:
        """A turn waits for blocks. `true_wait_s`: the wait after it, for a clairvoyant only."""

    def review(self, *, is_idle: bool) -> tuple[Sequence[Request], Sequence[Request]]:
        """Waiting turns that are held back from now on, and those that no longer are.

        Asked before each step. `is_idle`: nothing else runs or waits.
        """

    def before_match(self) -> None:
        """A waiting turn's prefix is about to be looked up."""

    def is_short_hit(self, num_tokens: int) -> bool:
        """Whether a DRAM hit of so many tokens is computed rather than loaded."""

    def scheduled(self, request: Request) -> None:
        """The turn got its blocks."""

    def loaded(self, request: Request) -> None:
        """What the turn had in DRAM is in the pool, and the step that ran meanwhile is over."""

    def computing(self, request: Request, num_tokens: int) -> None:
        """The next step computes the turn's prompt up to there."""

    def finished(self, request: Request) -> None:
        """The turn is over and its blocks are free; a pause may begin."""

    def tool_done(self, session: str) -> None:
        """The client says that the session's next turn is near."""

    def recomputed(self, seconds: float) -> None:
        """A step took so long for what had been computed before."""

    def after_step(self, num_steps: int) -> None:
        """So many steps were computed since the last call."""


class NativeKeeper:
    """vLLM's native offloading: LRU in the pool, LRU write-through in DRAM, no knowledge.

    Sessions' ends are not known to it, DRAM keeps copies of what the pool has, nothing is brought
    back before a turn asks.
    """

    def __init__(self, machine: Machine) -> None:
        self._offloading = Offloading(machine)

    def arrived(self, request: Request, true_wait_s: float) -> None:
        """See `Keeper`; nothing to do."""

    def review(self, *, is_idle: bool) -> tuple[Sequence[Request], Sequence[Request]]:
        return (), ()

    def before_match(self) -> None:
        """See `Keeper`; nothing to do."""

    def is_short_hit(self, num_tokens: int) -> bool:
        return False

    def scheduled(self, request: Request) -> None:
        self._offloading.scheduled(request)

    def loaded(self, request: Request) -> None:
        """See `Keeper`; nothing to do."""

    def computing(self, request: Request, num_tokens: int) -> None:
        self._offloading.computing(request, num_tokens)

    def finished(self, request: Request) -> None:
        self._offloading.finished(request)

    def tool_done(self, session: str) -> None:
        """See `Keeper`; nothing to do."""

    def recomputed(self, seconds: float) -> None:
        """See `Keeper`; nothing to do."""

    def after_step(self, num_steps: int) -> None:
        """See `Keeper`; nothing to do."""
