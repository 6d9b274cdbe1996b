"""What a pause cost, and what the best action would have cost, once its true wait is known.

    decision ──► ChoiceBook.note          turn back ──► ChoiceBook.close ──► hindsight()
                 what it was made on                    true wait, what was found

Why: a decision under a guess can be right and turn out dear; only the difference to what would have
been best, summed up, tells whether predictor and policy earn their keep.
Where: the controller notes each decision in the ledger's book, `resumes` closes it.

In seconds of delay, for the same bytes M of KV; a second of M in contended memory counts as one:

    hold        ∫ μ dt                             μ: price of GPU memory over the wait T
    swap        store + reload + extra + min(δ·T, recompute - swap)       δ: price of DRAM
    recompute   prefill of what is gone

These are the wastes of InferCept (Abhyankar et al., ICML 2024: preserve T·M, swap transfers·M,
discard T_fwd·M) over M, with the memory priced as in the break-even rule (μ·M·T against the
transfers plus δ·M·T; see `cost_model.break_even_s`). The rent has a bound, since DRAM may drop a
copy that is not worth its room. Policies weigh a return by μ too, for it takes the same memory as a
hold; here it counts in full, for the turn is late by it whether others want the memory or not.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

from agentkv.policy import Action, Decision, PauseView

MAX_OPEN = 16_384
"""Pauses whose decisions are kept until their turn is back; the oldest is forgotten first."""

MAX_CHOICES = 32
"""Decisions kept of one pause; with more, the newest takes the place of the last."""

_PRESSURE_HALF_LIFE_S = 1.0
_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One decision about a pause and what it was made on. Seconds; prices as in `Prices`.

    `kv_bytes`: what the session alone had in the pool; `missing`: the share of it that DRAM could
    not give back. `extra_s`: stall of a swap. `metered_s`: what `PriceMeter` showed then.
    """

    action: Action
    at_s: float
    metered_s: float
    kv_bytes: int
    dram_price: float
    recompute_s: float
    reload_s: float
    store_s: float
    extra_s: float
    missing: float

    @property
    def can_swap(self) -> bool:
        """Whether DRAM could have given anything back."""
        return self.missing < 1 and math.isfinite(self.store_s + self.reload_s)


@dataclass(frozen=True, slots=True)
class Closed:
    """A pause that is over: its decisions, the first one first, and the meter at its end."""

    choices: tuple[Choice, ...]
    metered_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of the KV that only this session had, as shares of it.

    `useful`: the turn's prompt goes on from it; of that `loaded` came from DRAM and `computed` had
    to be computed again; the rest was in the GPU pool. `slow_s`: how long it took to get to DRAM.
    """

    useful: float
    loaded: float
    computed: float
    slow_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hindsight:
    """`cost_s`: what the pause cost. `costs_s`: each action kept from beginning to end; no swap
    where DRAM could not have given anything back. The only action there was costs what it did."""

    cost_s: float
    costs_s: dict[str, float]

    @property
    def best(self) -> str:
        """The cheapest action."""
        return min(self.costs_s, key=self.costs_s.__getitem__)

    @property
    def regret_s(self) -> float:
        """Over the cheapest action; 0 also where luck made it cheaper than any."""
        over_s = self.cost_s - self.costs_s[self.best]
        return over_s if over_s > _ROUNDING_S else 0.0


class PriceMeter:
    """Adds up the price of GPU memory over time, from what is seen of it now and then.

    Between two looks it was at least the lower of the two prices; what the first had above that is
    taken to have halved every second, as `Appraiser.observe_demand` lets it, and a rise to have
    come at the end.
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._at_s = -math.inf
        self._price = 0.0

    def read(self, now_s: float, price: float) -> float:
        """Seconds of contended memory from some start until now."""
        passed_s = now_s - self._at_s
        if math.isfinite(passed_s) and passed_s > 0:
            lasting = min(self._price, price)
            fading_s = _PRESSURE_HALF_LIFE_S / math.log(2) * (1 - 0.5**passed_s)
            self._total_s += lasting * passed_s + (self._price - lasting) * fading_s
        self._at_s, self._price = max(now_s, self._at_s), price
        return self._total_s


class ChoiceBook:
    """The decisions about pauses that are open. Owned by the scheduler thread; bounded."""

    def __init__(self) -> None:
        self._meter = PriceMeter()
        self._choices: OrderedDict[int, list[Choice]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._choices)

    def note(self, pause_id: int, decision: Decision, view: PauseView) -> None:
        """A pause was decided, or decided anew."""
        choice = _choice(decision.action, view, self._meter.read(view.now_s, view.prices.hbm))
        choices = self._choices.setdefault(pause_id, [])
        if len(choices) == MAX_CHOICES:
            choices[-1] = choice
        else:
            choices.append(choice)
        if len(self._choices) > MAX_OPEN:
            self._choices.popitem(last=False)

    def close(self, pause_id: int, *, now_s: float, price: float) -> Closed | None:
        """The pause's turn is back; None if nothing is known of what was decided (any more)."""
        metered_s = self._meter.read(now_s, price)
        choices = self._choices.pop(pause_id, None)
        return Closed(tuple(choices), metered_s, now_s) if choices else None


def hindsight(closed: Closed, found: Found, *, arrived_s: float) -> Hindsight:
    """What the pause cost and what each action would have; see the module for the formula.

    Reload and recompute times are those of the last decision. Its turn arrived at `arrived_s`, and
    may have got its blocks later. A copy below DRAM counts with DRAM's rent: an upper bound.
    """
    first, last = closed.choices[0], closed.choices[-1]
    wait_s = max(0.0, arrived_s - first.at_s)
    held_s = _held_s(closed, arrived_s)
    costs_s = {
        Action.HOLD.value: sum(held_s),
        Action.RECOMPUTE.value: found.useful * last.recompute_s,
    }
    if last.can_swap:
        costs_s[Action.SWAP.value] = _rent_s(last, wait_s) + _return_s(
            last, _swapped(last, found.useful)
        )
    cost_s = _cost_s(closed, found, held_s, arrived_s)
    if len(actions := {choice.action for choice in closed.choices}) == 1:
        costs_s[actions.pop().value] = cost_s
    return Hindsight(cost_s, costs_s)


def expected_costs_s(view: PauseView) -> dict[str, float]:
    """What each action will cost if the wait is its median; for policies that weigh nothing."""
    choice = _choice(Action.HOLD, view, 0.0)
    wait_s = view.wait.p50_s
    costs_s = {
        Action.HOLD.value: view.prices.hbm * wait_s,
        Action.RECOMPUTE.value: view.recompute_s,
    }
    if choice.can_swap:
        costs_s[Action.SWAP.value] = _rent_s(choice, wait_s) + _return_s(
            choice, _swapped(choice, 1.0)
        )
    return costs_s


def _choice(action: Action, view: PauseView, metered_s: float) -> Choice:
    missing = max(0, view.dram_bytes_missing) / view.kv_bytes if view.kv_bytes > 0 else 0.0
    return Choice(
        action=action,
        at_s=view.now_s,
        metered_s=metered_s,
        kv_bytes=view.kv_bytes,
        dram_price=view.prices.dram,
        recompute_s=view.recompute_s,
        reload_s=view.reload_s,
        store_s=view.store_s,
        extra_s=view.stall_s,
        missing=min(1.0, missing),
    )


def _held_s(closed: Closed, arrived_s: float) -> list[float]:
    """What holding would have cost while each decision was in force."""
    last = closed.choices[-1]
    until_now_s = closed.at_s - last.at_s
    share = (arrived_s - last.at_s) / until_now_s if until_now_s > 0 else 1.0
    end_s = last.metered_s + min(max(share, 0.0), 1.0) * (closed.metered_s - last.metered_s)
    marks_s = [*(choice.metered_s for choice in closed.choices), end_s]
    return [later_s - former_s for former_s, later_s in pairwise(marks_s)]


def _cost_s(closed: Closed, found: Found, held_s: list[float], arrived_s: float) -> float:
    """What it did cost. DRAM's rent counts for what it gave back: what it dropped made room."""
    last, swapped_s = closed.choices[-1], 0.0
    cost_s = _return_s(last, found)
    ends_s = [*(choice.at_s for choice in closed.choices[1:]), arrived_s]
    for choice, end_s, paid_s in zip(closed.choices, ends_s, held_s, strict=True):
        if choice.action is Action.HOLD:
            cost_s += paid_s
        elif choice.action is Action.SWAP:
            swapped_s += max(0.0, end_s - choice.at_s)
    return cost_s + found.loaded * _rent_s(last, swapped_s)


def _swapped(choice: Choice, useful: float) -> Found:
    """What a turn finds after a swap: what DRAM could give back, of what the turn uses."""
    return Found(
        useful=useful, loaded=useful * (1 - choice.missing), computed=useful * choice.missing
    )


def _return_s(choice: Choice, found: Found) -> float:
    """The delay of a turn that found this."""
    delay_s = found.computed * choice.recompute_s
    if found.loaded > 0:
        delay_s += found.loaded * choice.reload_s + found.slow_s
        delay_s += choice.store_s + choice.extra_s
    return delay_s


def _rent_s(choice: Choice, wait_s: float) -> float:
    """For a copy in DRAM: never more than what recomputing in its place would add."""
    most_s = max(0.0, choice.recompute_s - _return_s(choice, _swapped(choice, 1.0)))
    return min(choice.dram_price * wait_s, most_s)
