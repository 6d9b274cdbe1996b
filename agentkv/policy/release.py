"""What giving up a pause's KV costs: a copy in DRAM to reload, or a recompute.

What: `Release`, the delays of both ways, cleaned of nonsense; the delay that a loss would cause.
Why: `expected_cost` weighs them over a distribution, the ranking needs the delay alone, and the
rivals must pay the same prices. Where: computed first in every decision that looks at costs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from agentkv.policy.base import PauseView

_LONGEST_S = 1e9
_LEAST_S = 1e-6  # a loss that costs nothing is still ranked by when it would be missed


class Release(NamedTuple):
    """Seconds. `reload_s` and `recompute_s` are paid on return, `store_s` at once.

    `can_swap`: a reload is possible; `note`: why not, in words, or how the two compare.
    """

    reload_s: float
    recompute_s: float
    store_s: float
    can_swap: bool
    note: str

    @property
    def is_swap_shorter(self) -> bool:
        """Whether a copy brings the turn back sooner than computing does."""
        return self.can_swap and self.store_s + self.reload_s < self.recompute_s

    @property
    def loss_s(self) -> float:
        """The delay that giving the KV up causes, by the shorter way; above 0."""
        shorter_s = self.recompute_s
        if self.is_swap_shorter:
            shorter_s = self.store_s + self.reload_s
        return max(shorter_s, _LEAST_S)


def release_of(view: PauseView) -> Release:
    """What the view says, bounded: no delay is negative, infinite or no number.

    What DRAM cannot take is computed again.
    """
    again_s = seconds(view.recompute_s)
    load_s, store_s = seconds(view.reload_s), seconds(view.store_s)
    missing = min(1.0, max(0, view.dram_bytes_missing) / max(1, view.kv_bytes))
    back_s = (1 - missing) * load_s + missing * again_s
    can_swap, note = True, ""
    if missing >= 1 or load_s >= _LONGEST_S or store_s >= _LONGEST_S:
        can_swap, note = False, "DRAM cannot take it"
    elif view.context_tokens < view.min_load_tokens:
        can_swap, note = False, f"{view.context_tokens} tokens are too few to reload"
    return Release(back_s, again_s, store_s, can_swap, note)


def seconds(value: float) -> float:
    """The value as a span of time that can be added up: 0 for nonsense, a bound for inf."""
    if value >= 0:
        return min(value, _LONGEST_S)
    return 0.0


def text_of(value_s: float) -> str:
    """Seconds as a reader wants them."""
    return f"{value_s:.3g} s" if math.isfinite(value_s) else "for ever"
