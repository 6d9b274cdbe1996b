"""The shipped table keeps its form and fits the names that the predictor asks for."""

from __future__ import annotations

import pytest

from agentkv.predict import commands
from agentkv.predict.priors import ANY_TOOL, LEVELS, NAME_TO_TOOL, PRIOR_WAITS, SHELL


@pytest.mark.parametrize("key", PRIOR_WAITS)
def test_rows_hold_rising_quantiles_in_seconds(key: str) -> None:
    for row in PRIOR_WAITS[key]:
        assert len(row) == len(LEVELS)
        assert list(row) == sorted(row)
        assert row[0] > 0 and row[-1] < 1e5


def test_levels_rise_from_zero_to_one() -> None:
    assert list(LEVELS) == sorted(set(LEVELS))
    assert (LEVELS[0], LEVELS[-1]) == (0.0, 1.0)


def test_every_command_class_has_a_prior() -> None:
    assert {f"{SHELL}:{name}" for name in commands._BY_LENGTH} <= set(PRIOR_WAITS)
    assert ANY_TOOL in PRIOR_WAITS


def test_other_names_of_a_tool_lead_to_its_prior() -> None:
    assert set(NAME_TO_TOOL.values()) <= set(PRIOR_WAITS)
    assert not set(NAME_TO_TOOL) & set(PRIOR_WAITS)
