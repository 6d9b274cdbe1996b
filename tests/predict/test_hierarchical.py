"""What the predictor knows at first, learns, follows and refuses to learn."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.predict import HierarchicalWaitPredictor, WaitEstimate


def trained(
    waits_s: list[float], tool: str = "db_query", command: str | None = None
) -> HierarchicalWaitPredictor:
    predictor = HierarchicalWaitPredictor()
    for wait_s in waits_s:
        predictor.observe(tool, command, wait_s)
    return predictor


def test_a_fresh_predictor_knows_short_tools_from_long_ones() -> None:
    predictor = HierarchicalWaitPredictor()
    edit, tests = predictor.estimate("Edit", None), predictor.estimate("Bash", "pytest -q")
    agent, person = predictor.estimate("Task", None), predictor.estimate("human", None)

    assert edit.p90_s < 0.5
    assert 0.3 < tests.p50_s < 5
    assert 20 < agent.p50_s < 120
    assert person.p50_s > 60
    assert (edit.num_observed, edit.source) == (0, "edit")
    assert tests.source == "bash:pytest/test"


@pytest.mark.parametrize("name", ["Bash", "execute_bash", "run_terminal_cmd", " SHELL "])
def test_the_shell_is_known_by_its_many_names(name: str) -> None:
    assert HierarchicalWaitPredictor().estimate(name, "git status").source == "bash:git local"


def test_an_unknown_tool_starts_from_all_pauses() -> None:
    estimate = HierarchicalWaitPredictor().estimate("quantum_oracle", None)

    assert estimate.source == "any tool"
    assert estimate.p90_s > 10


def test_without_seeds_nothing_is_known_at_first() -> None:
    predictor = HierarchicalWaitPredictor(is_seeded=False)
    assert predictor.estimate("Edit", None).p90_s > 100
    assert predictor.estimate("Edit", None).confidence == pytest.approx(0.0, abs=0.01)


def test_observed_waits_outweigh_the_prior() -> None:
    rng = random.Random(0)
    predictor = trained([rng.uniform(4, 6) for _ in range(100)], "Bash", "pytest -q")
    estimate = predictor.estimate("Bash", "pytest -q")

    assert estimate.p10_s > 3
    assert estimate.p50_s == pytest.approx(5, rel=0.25)
    assert estimate.num_observed == 100


def test_few_observations_lean_on_the_level_above() -> None:
    waits_s = {n: trained([40.0] * n).estimate("db_query", None).p50_s for n in (0, 2, 30)}

    assert waits_s[0] < waits_s[2] <= waits_s[30] * 1.01
    assert waits_s[30] == pytest.approx(40, rel=0.25)


def test_a_new_tool_learns_from_what_other_tools_took_here() -> None:
    predictor = trained([40.0] * 100, "one_tool")

    assert predictor.estimate("another_tool", None).p50_s == pytest.approx(40, rel=0.25)
    assert predictor.estimate("Edit", None).p50_s < 0.2  # its own prior is nearer


def test_command_classes_of_one_tool_are_kept_apart() -> None:
    predictor = trained([60.0] * 50, "Bash", "make all")

    assert predictor.estimate("Bash", "make all").p50_s == pytest.approx(60, rel=0.25)
    assert predictor.estimate("Bash", "git status").p50_s < 1


def test_programs_of_one_class_are_kept_apart() -> None:
    predictor = HierarchicalWaitPredictor()
    for _ in range(40):
        predictor.observe("Bash", "make all", 60.0)
        predictor.observe("Bash", "tsc --build", 3.0)

    assert predictor.estimate("Bash", "make docs").p50_s > 30
    assert predictor.estimate("Bash", "tsc -p .").p50_s == pytest.approx(3, rel=0.4)


def test_humans_and_tools_learn_nothing_from_each_other() -> None:
    predictor = trained([0.5] * 300, "human")

    assert predictor.estimate("human", None).p50_s == pytest.approx(0.5, rel=0.3)
    assert predictor.estimate("new_tool", None) == pytest.approx(
        HierarchicalWaitPredictor().estimate("new_tool", None)
    )


def test_the_predictor_follows_a_tool_that_changes() -> None:
    predictor = trained([1.0] * 400 + [50.0] * 250)

    assert predictor.estimate("db_query", None).p50_s == pytest.approx(50, rel=0.25)


def test_the_older_a_wait_the_longer_what_is_left() -> None:
    predictor = trained([0.05] * 50)
    left_s = [predictor.estimate("db_query", None, age_s=age).p50_s for age in (1, 5, 10, 30)]

    assert left_s == sorted(left_s)
    # As measured in coding sessions: 4.8, 26, 50 and 82 s.
    for age_s, median_s in zip((1, 5, 10, 30), left_s, strict=True):
        assert 2 * age_s < median_s < 8 * age_s


def test_even_a_prior_of_short_waits_has_a_tail() -> None:
    assert 20 < HierarchicalWaitPredictor().estimate("Edit", None, age_s=10.0).p50_s < 120


def test_two_humps_stay_two_humps_as_the_wait_ages() -> None:
    predictor = trained([0.1] * 90 + [100.0] * 90)

    assert predictor.estimate("db_query", None).p10_s < 0.2
    assert predictor.estimate("db_query", None, age_s=1.0).p10_s > 3
    assert predictor.estimate("db_query", None, age_s=1.0).p50_s == pytest.approx(99, rel=0.25)


def test_the_curve_says_what_the_quantiles_say() -> None:
    estimate = trained([0.1] * 90 + [100.0] * 90).estimate("db_query", None, age_s=1.0)
    curve = estimate.curve

    assert 16 <= len(curve.times_s) <= 40
    assert list(curve.times_s) == sorted(set(curve.times_s))
    back = 1 - estimate.chance_ended
    for level, wait_s in ((0.1, estimate.p10_s), (0.5, estimate.p50_s), (0.9, estimate.p90_s)):
        assert curve.chance_within(wait_s) == pytest.approx(level * back, abs=0.01)


def test_estimating_changes_nothing() -> None:
    predictor = trained([3.0] * 5)
    first = predictor.estimate("db_query", "select 1", age_s=1.0)
    predictor.estimate("other", None, expected_wait_s=9.0)
    predictor.estimate("db_query", "select 1", expected_wait_s=9.0, timeout_s=1.0)

    assert predictor.estimate("db_query", "select 1", age_s=1.0) == first


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, -1, "5", None, True])
def test_nonsense_is_neither_learned_nor_believed(bad: Any) -> None:
    predictor, untouched = HierarchicalWaitPredictor(), HierarchicalWaitPredictor()
    predictor.observe("Bash", "pytest", bad)

    asked = predictor.estimate("Bash", "x", age_s=bad, expected_wait_s=bad, timeout_s=bad)
    assert asked == untouched.estimate("Bash", "x")


def test_names_without_end_use_bounded_memory() -> None:
    predictor = HierarchicalWaitPredictor(max_levels=16)
    for i in range(200):
        predictor.observe(f"tool-{i}", f"command {i}", 40.0)
        predictor.observe("kept", None, 40.0)

    assert len(predictor.levels) == 16
    assert predictor.estimate("kept", None).num_observed == 200
    assert predictor.estimate("tool-0", None).source == "any tool"


def test_sessions_without_end_use_bounded_memory() -> None:
    predictor = HierarchicalWaitPredictor(max_levels=64, max_sessions=8)
    for i in range(100):
        for j in range(4):
            predictor.observe(f"tool-{j}", f"command {i}", 40.0, session=i)
    for i in range(2000):
        predictor.observe("Bash", f"python job_{i}.py", 1.0 + i, session="long")
        predictor.estimate("Bash", f"python job_{i}.py", session="long")

    assert len(predictor.sessions) == 8
    memory = predictor.sessions.get("long")
    assert memory is not None
    assert len(memory.levels) <= 32 and len(memory._last_s) <= 256
    assert len(predictor.levels) == 64
    assert len(predictor._cache) <= 1024


def test_a_very_long_name_is_cut() -> None:
    predictor = HierarchicalWaitPredictor()
    predictor.observe("x" * 10**6, "y" * 10**6, 1.0, session="s")

    assert max(len(name) for key, _ in predictor.levels.items() for name in key.names) <= 64


spans = st.one_of(st.none(), st.floats(), st.integers(-(10**400), 10**400))
sessions = st.one_of(st.none(), st.integers(0, 2))


@given(
    seen=st.lists(
        st.tuples(st.text(max_size=8), st.text(max_size=40), st.floats(), sessions, st.booleans()),
        max_size=20,
    ),
    tool=st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["Bash", "Edit", "human"])),
    command=st.one_of(st.none(), st.text(max_size=60), st.sampled_from(["sleep 9", "pytest"])),
    age_s=st.floats(),
    expected_wait_s=spans,
    timeout_s=spans,
    session=sessions,
)
def test_any_input_gives_ordered_finite_quantiles(
    seen: list[tuple[str, str, float, int | None, bool]],
    tool: str | None,
    command: str | None,
    age_s: float,
    expected_wait_s: float | None,
    timeout_s: float | None,
    session: int | None,
) -> None:
    predictor = HierarchicalWaitPredictor()
    for seen_tool, seen_command, wait_s, whose, is_censored in seen:
        predictor.observe(seen_tool, seen_command, wait_s, session=whose, is_censored=is_censored)
    estimate = predictor.estimate(
        tool,
        command,
        age_s=age_s,
        expected_wait_s=expected_wait_s,
        timeout_s=timeout_s,
        session=session,
    )

    assert isinstance(estimate, WaitEstimate)
    assert 0 <= estimate.p10_s <= estimate.p50_s <= estimate.p90_s < math.inf
    assert 0 <= estimate.chance_ended < 1 and 0 <= estimate.confidence <= 1
    if timeout_s is not None and 0 < timeout_s < 1e6 and 0 <= age_s < timeout_s:
        assert estimate.p90_s <= timeout_s - age_s
    times_s, chances = estimate.curve.times_s, estimate.curve.chances
    assert all(a < b for a, b in itertools.pairwise(times_s))
    assert times_s[0] > 0 and times_s[-1] < math.inf
    assert list(chances) == sorted(chances) and chances[0] >= 0 and chances[-1] <= 1
