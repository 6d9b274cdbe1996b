"""The contract of a pause policy.

What: `PauseView`, all a policy may look at; `Decision`, all it may say; the `PausePolicy` seam.
Why: a policy is a pure function of values, so a decision can be logged, replayed and tested, and
the controller alone acts. Where: the controller asks when a turn ends in a tool call, and again as
the wait ages or the pressure on the GPU pool changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from agentkv.cost_model import Prices
from agentkv.predict.base import WaitEstimate


class Action(str, Enum):
    """What becomes of a paused session's KV."""

    HOLD = "hold"  # stays in the GPU pool
    SWAP = "swap"  # lives on in DRAM; its GPU blocks go first
    RECOMPUTE = "recompute"  # given up in every tier

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseView:
    """One paused session at one moment.

    `kv_bytes` counts what the session alone keeps in the GPU pool; `wait` is what is left of it
    after `age_s`. `recompute_s` and `reload_s` are the delays of the next turn if the KV is gone
    from the pool; `store_s` is 0 if DRAM has it already. `dram_bytes_missing` are neither in DRAM
    nor storable there. `pressure` in 0..1 is for the reader; `prices` already carry it.
    `running_bytes`: KV of the turns that a recompute would delay. `share_back`: of sessions of
    which no more is known than of this one, the share that came back at all.
    """

    now_s: float
    age_s: float
    context_tokens: int
    kv_bytes: int
    wait: WaitEstimate
    recompute_s: float
    reload_s: float
    store_s: float
    dram_bytes_missing: int
    load_bytes_per_s: float
    prices: Prices
    pressure: float
    is_ended: bool = False
    is_superseded: bool = False
    min_load_tokens: float = 0
    previous_action: Action | None = None
    stall_s: float = 0.0
    running_bytes: int = 0
    share_back: float = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why.

    `break_even_s`: the remaining wait from which letting go pays; None where there is none.
    `costs_s`: expected cost of each possible action in seconds of fully contended GPU memory, all
    finite. `review_in_s`: ask again then at the latest; None: only when the pressure changes.
    `keep_value`: what keeping the KV at hand is worth per byte and second, to rank pauses that
    compete for the same memory; None where the policy does not say: then the latest return goes.
    `keep_value_by_age`: the same, were only the age of the wait known: what to rank by where
    predictions do not pay. `fading`: `keep_value` falls as 1/age^fading until decided anew.
    `copy_factor`: how much more the copy in DRAM is worth, whose loss costs computing all again.
    """

    action: Action
    reason: str
    break_even_s: float | None = None
    costs_s: Mapping[str, float] = field(default_factory=dict)
    review_in_s: float | None = None
    keep_value: float | None = None
    keep_value_by_age: float | None = None
    fading: float = 0.0
    copy_factor: float = 1.0


class PausePolicy(Protocol):
    """A policy keeps no state: equal views give equal decisions."""

    def decide(self, view: PauseView) -> Decision:
        """What to do with a paused session now. Changes nothing, never blocks or raises."""


def give_up_if_useless(view: PauseView) -> Decision | None:
    """Every policy's first rule: KV that no turn will come back for is dropped."""
    if view.is_ended:
        return Decision(Action.RECOMPUTE, "the session has ended: no turn will need its KV")
    if view.is_superseded:
        return Decision(Action.RECOMPUTE, "a later turn has replaced this context")
    return None


def hold_if_free(view: PauseView) -> Decision | None:
    """The second rule of policies that know prices: what costs nothing is held."""
    if view.prices.hbm <= 0:
        return Decision(Action.HOLD, "nobody waits for blocks: holding is free")
    if view.prices.hbm <= view.prices.dram:
        return Decision(
            Action.HOLD, f"pressure {view.pressure:.2g}: GPU memory is no dearer than DRAM yet"
        )
    if view.kv_bytes <= 0:
        return Decision(Action.HOLD, "every block is shared with a live session: holding is free")
    return None
