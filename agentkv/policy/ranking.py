"""Whose KV goes first when pauses compete for the same memory. Pure.

What: `give_up_keys`, from what is known of the pauses to the order in which they give way.
Why here: the controller and the simulator must rank alike. A worth is as of when it was decided; in
between it fades, so that a pause that was looked at long ago does not seem as fresh as then.
Where: `agentkv.portfolio`, and the tiers of `agentkv.sim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentkv.policy.base import Action, Decision
from agentkv.policy.keep_value import AGE_FLOOR_S

ACTION_RANK = {Action.RECOMPUTE: 0, Action.SWAP: 1, Action.HOLD: 2}
_OLD_SHARE, _OLD_S = 1.25, 0.05


Key = tuple[int, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A pause that may give way. Moments are on the monotonic clock, in seconds.

    `decided_s`: when its decision was made; `returns_at_s`: when it is expected back.
    """

    decision: Decision
    started_s: float
    decided_s: float
    returns_at_s: float
    is_tool_done: bool = False

    def worth(self, worth_of: Callable[..., float], now_s: float) -> float:
        """By `worth_now` or one of its kin."""
        decided_age_s = self.decided_s - self.started_s
        return worth_of(self.decision, decided_age_s=decided_age_s, age_s=now_s - self.started_s)


def drop_keys(candidates: Sequence[Candidate], now_s: float) -> list[float]:
    """What the copies in DRAM are worth, by prediction: the lower, the sooner to be dropped."""
    return [each.worth(copy_worth_now, now_s) for each in candidates]


def give_up_keys(
    candidates: Sequence[Candidate], now_s: float, *, is_prediction_trusted: bool = True
) -> list[Key]:
    """The lower, the sooner to give way.

    By worth: what no turn will need, then what is worth least per byte and second, last those whose
    tool is done. Where a policy gives no worth: recompute, swap, hold; within each the latest
    expected return. Without trust in predictions the worth by age alone counts: LRU among equals.
    """
    if not is_ranked(candidates):
        return [_key_by_return(each, now_s) for each in candidates]
    return [_key_by_worth(each, now_s, is_prediction_trusted) for each in candidates]


def is_ranked(candidates: Sequence[Candidate]) -> bool:
    """Whether the policy tells what they are worth; what none will need it need not tell."""
    unvalued = [each.decision.action for each in candidates if each.decision.keep_value is None]
    is_told = len(unvalued) < len(candidates)
    return is_told and all(action is Action.RECOMPUTE for action in unvalued)


def is_due(decision: Decision, *, decided_age_s: float, age_s: float) -> bool:
    """Whether to decide anew before ranking: a worth is out of date when the wait has aged by a
    quarter, or when its policy asked for another look."""
    review_in_s = decision.review_in_s
    if review_in_s is not None and age_s - decided_age_s >= review_in_s:
        return True
    return age_s > _OLD_SHARE * decided_age_s + _OLD_S


def worth_now(decision: Decision, *, decided_age_s: float, age_s: float) -> float:
    """`keep_value`, faded since it was decided; 0 where there is none."""
    if decision.keep_value is None:
        return 0.0
    return decision.keep_value * math.pow(_aged(decided_age_s, age_s), decision.fading)


def worth_by_age(decision: Decision, *, decided_age_s: float, age_s: float) -> float:
    """The same if nothing but the age is known."""
    if decision.keep_value_by_age is None:
        return worth_now(decision, decided_age_s=decided_age_s, age_s=age_s)
    return decision.keep_value_by_age * _aged(decided_age_s, age_s)


def copy_worth_now(decision: Decision, *, decided_age_s: float, age_s: float) -> float:
    """`worth_now` of the copy in DRAM."""
    now = worth_now(decision, decided_age_s=decided_age_s, age_s=age_s)
    return decision.copy_factor * now


def copy_worth_by_age(decision: Decision, *, decided_age_s: float, age_s: float) -> float:
    """`worth_by_age` of the copy in DRAM."""
    now = worth_by_age(decision, decided_age_s=decided_age_s, age_s=age_s)
    return decision.copy_factor * now


def _aged(decided_age_s: float, age_s: float) -> float:
    return (max(0.0, decided_age_s) + AGE_FLOOR_S) / (max(0.0, decided_age_s, age_s) + AGE_FLOOR_S)


def _key_by_worth(each: Candidate, now_s: float, is_trusted: bool) -> Key:
    worth = each.worth(worth_now if is_trusted else worth_by_age, now_s)
    if worth <= 0 and each.decision.action is Action.RECOMPUTE:
        return 0, worth, each.started_s
    return 2 if each.is_tool_done else 1, worth, each.started_s


def _key_by_return(each: Candidate, now_s: float) -> Key:
    expected_s = now_s if each.is_tool_done else max(each.returns_at_s, now_s)
    return ACTION_RANK[each.decision.action], -expected_s, 0.0
