"""The default policy: hold while a return is likely enough to be worth it, else let go.

What: the break-even rule applied to a distribution of waits. Letting go costs as much as holding
for the break-even time T*. Holding up to a moment t costs E[min(wait, t)] and saves T* if the
session is back by then, so it pays iff T*·P(wait <= t) > E[min(wait, t)] for some t; that t is when
to ask again. Why: tool waits have two humps and a heavy tail; a rule on their mean or median lets
go of sessions that are about to return, or holds those that are not. The far tail never enters.
Where: the value of `policy: break_even`, the default.

"Let go" is a swap, or a recompute where bringing the KV back from DRAM would take longer than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agentkv.cost_model import break_even_wait_s
from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless, hold_if_free
from agentkv.predict.base import WaitEstimate

SWITCH_MARGIN = 0.1  # another action must be better by this much than the one in force
_MIN_REVIEW_S = 0.01
_LEVELS_WITHIN = (0.25, 0.5, 0.75, 1.0)
_NO_WAIT_S = 1e-6


@dataclass(frozen=True, slots=True)
class BreakEvenPolicy:
    """See the module; stateless."""

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        return give_up_if_useless(view) or hold_if_free(view) or _weigh(view)


class _Release(NamedTuple):
    """The better way to let go; `break_even_s` is the hold it is worth."""

    action: Action
    break_even_s: float
    note: str


class _HoldPoint(NamedTuple):
    """Hold up to `until_s` and let go then: chance to have returned, expected seconds held."""

    until_s: float
    chance: float
    held_s: float

    def gain_s(self, break_even_s: float) -> float:
        return break_even_s * self.chance - self.held_s


def _weigh(view: PauseView) -> Decision:
    release = _best_release(view)
    points = list(_hold_points(view.wait))
    hold = max(points, key=lambda point: point.gain_s(release.break_even_s))
    is_hold = hold.gain_s(release.break_even_s * _bias(view)) > 0
    return Decision(
        action=Action.HOLD if is_hold else release.action,
        reason=_reason(view, release, hold, is_hold=is_hold),
        break_even_s=release.break_even_s if math.isfinite(release.break_even_s) else None,
        costs_s=_costs_s(view, release, hold, horizon=points[-1]),
        review_in_s=max(hold.until_s, _MIN_REVIEW_S) if is_hold else None,
    )


def _bias(view: PauseView) -> float:
    """Leans towards the action in force, so that noise does not flip it back and forth."""
    if view.previous_action is None:
        return 1.0
    is_held = view.previous_action is Action.HOLD
    return 1 + SWITCH_MARGIN if is_held else 1 / (1 + SWITCH_MARGIN)


def _swap_resume_s(view: PauseView) -> float:
    """Store and load what DRAM takes, recompute the rest; inf where that is impossible."""
    missing = min(1.0, max(0, view.dram_bytes_missing) / view.kv_bytes)
    if missing >= 1 or not math.isfinite(view.store_s + view.reload_s):
        return math.inf
    return view.store_s + (1 - missing) * view.reload_s + missing * view.recompute_s


def _best_release(view: PauseView) -> _Release:
    swap_s = _swap_resume_s(view)
    margin = 1.0
    if view.previous_action is Action.SWAP:
        margin = 1 + SWITCH_MARGIN
    elif view.previous_action is Action.RECOMPUTE:
        margin = 1 / (1 + SWITCH_MARGIN)
    if math.isinf(swap_s):
        note = "DRAM cannot take it"
    elif view.context_tokens < view.min_load_tokens:
        note = f"{view.context_tokens} tokens are too few to reload"
    elif swap_s >= view.recompute_s * margin:
        note = f"recompute {_text(view.recompute_s)} <= reload {_text(swap_s)}"
    else:
        break_even_s = break_even_wait_s(swap_s, view.prices, view.stall_s)
        note = f"reload {_text(swap_s)} < recompute {_text(view.recompute_s)}"
        return _Release(Action.SWAP, break_even_s, note)
    return _Release(Action.RECOMPUTE, view.recompute_s, note)


def _hold_points(wait: WaitEstimate) -> Iterator[_HoldPoint]:
    """Moments to let go, up to the 90 % quantile, on straight lines between the known quantiles.

    The lines are logarithmic in time. Beyond p90 nothing is known, so nothing is hoped for.
    """
    knots = ((0.1, wait.p10_s), (0.5, wait.p50_s), (0.9, wait.p90_s))
    chance, until_s, held_s = 0.0, 0.0, 0.0
    for level, knot_s in knots:
        first_chance, first_s = chance, max(until_s, _NO_WAIT_S)
        for share in _LEVELS_WITHIN:
            next_chance = first_chance + share * (level - first_chance)
            next_s = first_s * (max(knot_s, first_s) / first_s) ** share
            if first_chance == 0.0:
                next_s = share * knot_s  # no lower quantile is known: spread evenly
            held_s += (next_s - until_s) * (1 - (chance + next_chance) / 2)
            chance, until_s = next_chance, next_s
            yield _HoldPoint(until_s, chance, held_s)


def _costs_s(
    view: PauseView, release: _Release, hold: _HoldPoint, horizon: _HoldPoint
) -> Mapping[str, float]:
    """Expected costs up to the horizon, in seconds of fully contended GPU memory.

    Rent for a DRAM copy never exceeds what recomputing instead would add: DRAM may drop it.
    """
    hbm, dram = view.prices.hbm, view.prices.dram
    swap_s = _swap_resume_s(view)

    def swapped(wait_s: float) -> float:
        most = hbm * max(0.0, view.recompute_s - swap_s)
        return hbm * swap_s + (hbm - dram) * view.stall_s + min(dram * wait_s, most)

    costs = {Action.RECOMPUTE.value: hbm * view.recompute_s}
    if math.isfinite(swap_s):
        costs[Action.SWAP.value] = swapped(horizon.held_s)
    late = 1 - hold.chance
    if release.action is Action.SWAP:
        let_go = late * swapped((horizon.held_s - hold.held_s) / late)
    else:
        let_go = late * hbm * view.recompute_s
    costs[Action.HOLD.value] = hbm * hold.held_s + let_go
    return {name: cost for name, cost in costs.items() if math.isfinite(cost)}


def _reason(view: PauseView, release: _Release, hold: _HoldPoint, *, is_hold: bool) -> str:
    wait, line = view.wait, release.break_even_s
    is_short = wait.p50_s <= line
    text = f"{wait.source}: wait p50 {_text(wait.p50_s)} {'<=' if is_short else '>'} break-even "
    text += f"{_text(line)} at pressure {view.pressure:.2g}"
    if is_hold:
        if not is_short:
            text += f", but {hold.chance:.0%} return within {_text(hold.until_s)}: worth it"
        return text
    if is_short:
        text += f", but p90 {_text(wait.p90_s)} makes holding dearer"
    return f"{text}; {release.note}"


def _text(seconds: float) -> str:
    return f"{seconds:.3g} s"
