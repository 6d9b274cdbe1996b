"""The default policy: the action of least expected cost over the whole distribution of the wait.

    hold until t      hbm·E[min(wait, t)]  +  what letting go at t costs those not back by then
    swap              a store now, a reload per return
    recompute         a recompute per return

What: a hold is minimised over the moments to let go; the best of the three is taken, and the moment
that minimised a hold is when to look again. Why: a wait with two humps is worth holding through the
first. Where: the value of `policy: expected_cost`.

No copy is dropped here: DRAM ranks copies by their worth (`Portfolio.to_drop`). So where letting go
is a swap, the copy is kept to the end, and a hold costs the difference between the two memories;
elsewhere both cost their own price.

All costs are in seconds of fully contended GPU memory for the KV's own bytes, as in `break_even`,
whose rule this is for a swap: T* = transfer·hbm/(hbm - dram) + stall. Bytes shared with live
sessions are not in the view, so they cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentkv.cost_model import break_even_wait_s
from agentkv.policy.base import Action, Decision, PauseView, give_up_if_useless, hold_if_free
from agentkv.policy.break_even import SWITCH_MARGIN
from agentkv.policy.keep_value import age_estimate, mixed_rate, rate_by_age, trust
from agentkv.policy.outlook import Outlook, outlook_of
from agentkv.policy.release import Release, release_of, seconds, text_of

_MIN_REVIEW_S = 0.01


@dataclass(frozen=True, slots=True)
class ExpectedCostPolicy:
    """See the module; stateless. Without `uses_prediction` the age of a wait is all it knows."""

    uses_prediction: bool = True

    def decide(self, view: PauseView) -> Decision:
        """See `PausePolicy.decide`."""
        useless = give_up_if_useless(view)
        if useless is not None:
            return replace(useless, keep_value=0.0, keep_value_by_age=0.0)
        if not self.uses_prediction:
            view = replace(view, wait=age_estimate(view.age_s))
        release, outlook = release_of(view), outlook_of(view.wait)
        worth = _worth(view, release, outlook)
        free = hold_if_free(view)
        if free is not None:
            return _decision(worth, action=free.action, reason=free.reason)
        return _weigh(view, release, outlook, worth)


class _Worth(NamedTuple):
    keep_value: float
    keep_value_by_age: float
    fading: float
    copy_factor: float


class _Prices(NamedTuple):
    """Of one return and of one second, in seconds of contended memory."""

    hold: float
    rent: float
    store: float
    reload: float
    recompute: float


class _Plan(NamedTuple):
    """Minimal costs of each action; `until_s`: when a hold should end."""

    hold: float
    swap: float
    recompute: float
    until_s: float
    chance: float
    gain: float


def _worth(view: PauseView, release: Release, outlook: Outlook) -> _Worth:
    density = view.share_back * release.loss_s / max(1, view.kv_bytes)
    rate, fading = mixed_rate(outlook, view.age_s, trust(view.wait.confidence))
    copy_factor = max(1.0, release.recompute_s / release.loss_s)
    return _Worth(density * rate, density * rate_by_age(view.age_s), fading, copy_factor)


def _weigh(view: PauseView, release: Release, outlook: Outlook, worth: _Worth) -> Decision:
    prices = _prices(view, release)
    can_swap = release.can_swap and _is_reload_less(view, prices, outlook)
    if can_swap:
        prices = prices._replace(hold=prices.hold - prices.rent, rent=0.0)
    plan = _plan(outlook, prices, _bias(view), can_swap=can_swap)
    let_go = Action.SWAP if can_swap else Action.RECOMPUTE
    break_even_s = release.recompute_s
    if can_swap:
        spent_s = prices.store / view.prices.hbm + release.reload_s
        break_even_s = break_even_wait_s(spent_s, view.prices, seconds(view.stall_s))
    action = Action.HOLD if plan.gain > 0 else let_go
    return _decision(
        worth,
        action=action,
        reason=_reason(view, release, plan, action, break_even_s),
        break_even_s=break_even_s,
        costs_s=_costs(plan, can_swap=release.can_swap),
        review_in_s=max(plan.until_s, _MIN_REVIEW_S) if action is Action.HOLD else None,
    )


def _prices(view: PauseView, release: Release) -> _Prices:
    hbm, dram = min(view.prices.hbm, 1e6), max(0.0, view.prices.dram)
    return _Prices(
        hold=hbm,
        rent=dram,
        store=hbm * release.store_s,
        reload=hbm * release.reload_s + (hbm - dram) * seconds(view.stall_s),
        recompute=hbm * release.recompute_s,
    )


def _is_reload_less(view: PauseView, prices: _Prices, outlook: Outlook) -> bool:
    """Whether a copy costs less than computing, rent apart."""
    returns = outlook.chances[-1] + outlook.beyond
    margin = _release_margin(view)
    return prices.store + returns * prices.reload < returns * prices.recompute * margin


def _plan(outlook: Outlook, prices: _Prices, bias: float, *, can_swap: bool) -> _Plan:
    """Weighs every moment to let go: those not back by then pay a swap, or else a recompute.

    `bias` above 1 favours a hold: what it saves counts that much.
    """
    times_s, chances, held_s, beyond = outlook
    hold, rent, store, reload, recompute = prices
    last = len(times_s) - 1
    returns = chances[last] + beyond
    once, each = (store, reload) if can_swap else (0.0, recompute)
    go_costs = [once * (1 - chance) + each * (returns - chance) for chance in chances]
    best, best_gain = 1, -math.inf
    for i in range(1, last + 1):
        gain = bias * (go_costs[0] - go_costs[i]) - hold * held_s[i]
        if gain > best_gain:
            best, best_gain = i, gain
    return _Plan(
        hold=hold * held_s[best] + go_costs[best],
        swap=store + reload * returns + rent * held_s[last],
        recompute=recompute * returns,
        until_s=times_s[best],
        chance=chances[best],
        gain=best_gain,
    )


def _bias(view: PauseView) -> float:
    """Leans towards the action in force, so that noise does not flip it back and forth."""
    if view.previous_action is None:
        return 1.0
    is_held = view.previous_action is Action.HOLD
    return 1 + SWITCH_MARGIN if is_held else 1 / (1 + SWITCH_MARGIN)


def _release_margin(view: PauseView) -> float:
    if view.previous_action is Action.SWAP:
        return 1 + SWITCH_MARGIN
    return 1 / (1 + SWITCH_MARGIN) if view.previous_action is Action.RECOMPUTE else 1.0


def _costs(plan: _Plan, *, can_swap: bool) -> Mapping[str, float]:
    costs = {Action.HOLD.value: plan.hold, Action.RECOMPUTE.value: plan.recompute}
    if can_swap:
        costs[Action.SWAP.value] = plan.swap
    return costs


def _reason(
    view: PauseView, release: Release, plan: _Plan, action: Action, break_even_s: float
) -> str:
    source, at = f"{view.wait.source}: ", f"at pressure {view.pressure:.2g}"
    if action is Action.HOLD:
        return (
            f"{source}{plan.chance:.0%} return within {text_of(plan.until_s)}: holding until then"
            f" costs less than letting go, break-even {text_of(break_even_s)} {at}"
        )
    text = f"{source}too few return within break-even {text_of(break_even_s)} to hold {at}; "
    if release.note:
        return text + release.note
    reload_s = release.store_s + release.reload_s
    again = f"recompute {text_of(release.recompute_s)}"
    if action is Action.SWAP:
        return f"{text}reload {text_of(reload_s)} < {again}"
    if release.is_swap_shorter:
        return f"{text}{again} costs less than keeping a copy"
    return f"{text}{again} <= reload {text_of(reload_s)}"


def _decision(
    worth: _Worth,
    *,
    action: Action,
    reason: str,
    break_even_s: float | None = None,
    costs_s: Mapping[str, float] | None = None,
    review_in_s: float | None = None,
) -> Decision:
    return Decision(
        action,
        reason,
        break_even_s,
        costs_s or {},
        review_in_s,
        *worth,
    )
