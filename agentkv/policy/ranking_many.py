"""`ranking` for thousands of pauses at once: the same keys, as columns.

Why: the scheduler waits for the ranking, and a key takes some microseconds in Python. Where:
`agentkv.pause_table` keeps the rows, `agentkv.portfolio` ranks them. tests/policy/test_ranking_many
holds both forms against each other.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentkv.policy.base import Action
from agentkv.policy.keep_value import AGE_FLOOR_S
from agentkv.policy.ranking import ACTION_RANK, Candidate

FIELDS: list[tuple[str, type]] = [
    ("action_rank", np.int64),
    ("is_valued", np.bool_),
    ("is_tool_done", np.bool_),
    ("keep_value", np.float64),
    ("fading", np.float64),
    ("by_age", np.float64),
    ("by_age_fading", np.float64),
    ("copy_factor", np.float64),
    ("started_s", np.float64),
    ("decided_s", np.float64),
    ("returns_at_s", np.float64),
]
"""One candidate, as `row_of` gives it."""

Rows: TypeAlias = npt.NDArray[Any]
Column: TypeAlias = npt.NDArray[np.float64]


def row_of(each: Candidate) -> tuple[float, ...]:
    """What is known of a candidate, in the order of `FIELDS`."""
    decision, value, by_age = (
        each.decision,
        each.decision.keep_value,
        each.decision.keep_value_by_age,
    )
    known = value or 0.0
    return (
        ACTION_RANK[decision.action],
        value is not None,
        each.is_tool_done,
        known,
        decision.fading,
        known if by_age is None else by_age,
        decision.fading if by_age is None else 1.0,
        decision.copy_factor,
        each.started_s,
        each.decided_s,
        each.returns_at_s,
    )


def are_ranked(rows: Rows) -> bool:
    """As `ranking.is_ranked`."""
    unvalued = rows["action_rank"][~rows["is_valued"]]
    return len(unvalued) < len(rows) and not unvalued.any()


def give_up_columns(
    rows: Rows, now_s: float, *, is_prediction_trusted: bool
) -> tuple[Column, Column, Column]:
    """The three parts of the keys of `ranking.give_up_keys`, one of each for every row."""
    is_done = rows["is_tool_done"]
    if not are_ranked(rows):
        expected_s = np.where(is_done, now_s, np.maximum(rows["returns_at_s"], now_s))
        return rows["action_rank"].astype(float), -expected_s, np.zeros(len(rows))
    worth = worth_column(rows, now_s, is_prediction_trusted=is_prediction_trusted)
    is_useless = (worth <= 0) & (rows["action_rank"] == ACTION_RANK[Action.RECOMPUTE])
    return np.where(is_useless, 0.0, np.where(is_done, 2.0, 1.0)), worth, rows["started_s"]


def drop_column(rows: Rows, now_s: float) -> Column:
    """As `ranking.drop_keys`."""
    copies: Column = rows["copy_factor"] * worth_column(rows, now_s, is_prediction_trusted=True)
    return copies


def worth_column(rows: Rows, now_s: float, *, is_prediction_trusted: bool) -> Column:
    """As `ranking.worth_now`, or without trust in predictions `ranking.worth_by_age`."""
    decided_age_s = np.maximum(0.0, rows["decided_s"] - rows["started_s"])
    age_s = np.maximum(decided_age_s, now_s - rows["started_s"])
    aged = (decided_age_s + AGE_FLOOR_S) / (age_s + AGE_FLOOR_S)
    value, fading = (
        ("keep_value", "fading") if is_prediction_trusted else ("by_age", "by_age_fading")
    )
    worth: Column = rows[value] * np.power(aged, rows[fading])
    return worth
