"""What a session's own past tells, and how unended, stopped and stated waits are taken."""

from __future__ import annotations

import random

import pytest

from agentkv.predict import HierarchicalWaitPredictor

TESTS = "pytest -q"


def test_the_sessions_own_waits_go_before_those_of_others() -> None:
    predictor = HierarchicalWaitPredictor()
    for i in range(200):
        predictor.observe("Bash", f"{TESTS} test_{i}.py", 2.0, session=f"other-{i % 20}")
    for i in range(8):
        predictor.observe("Bash", f"{TESTS} mine_{i}.py", 90.0, session="mine")

    mine = predictor.estimate("Bash", f"{TESTS} new.py", session="mine")
    stranger = predictor.estimate("Bash", f"{TESTS} new.py", session="stranger")
    assert mine.p50_s == pytest.approx(90, rel=0.3)
    assert stranger.p50_s == pytest.approx(2, rel=0.3)


def test_what_a_session_did_is_forgotten_when_it_ends() -> None:
    predictor = HierarchicalWaitPredictor()
    for i in range(100):
        predictor.observe("Bash", f"{TESTS} {i}", 2.0, session="other")
    for i in range(5):
        predictor.observe("Bash", f"{TESTS} mine {i}", 90.0, session="mine")
    predictor.forget("mine")

    assert predictor.estimate("Bash", f"{TESTS} x", session="mine").p50_s < 5
    predictor.forget("never seen")


def test_the_last_time_of_a_command_tells_more_than_its_program() -> None:
    """Each command has a length of its own, from 0.1 s to 100 s, in every session the same."""
    rng = random.Random(2)
    predictor = HierarchicalWaitPredictor()
    for session in range(60):
        lengths_s = [10 ** rng.uniform(-1, 2) for _ in range(4)]
        for _ in range(3):
            for i, length_s in enumerate(lengths_s):
                name = f"make target-{session}-{i}"
                predictor.observe("Bash", name, length_s * rng.uniform(0.9, 1.1), session=session)
    for length_s in (0.3, 3.0, 30.0):
        predictor.observe("Bash", f"make {length_s}", length_s, session="mine")
    for length_s in (0.3, 3.0, 30.0):
        estimate = predictor.estimate("Bash", f"make {length_s}", session="mine")
        assert estimate.p50_s == pytest.approx(length_s, rel=0.4)


def test_a_command_that_is_quick_the_second_time_is_learned_as_such() -> None:
    predictor = HierarchicalWaitPredictor()
    for session in range(40):
        predictor.observe("Bash", f"make {session}", 8.0, session=session)
        predictor.observe("Bash", f"make {session}", 0.3, session=session)
    predictor.observe("Bash", "make mine", 8.0, session="mine")

    assert predictor.estimate("Bash", "make mine", session="mine").p50_s < 1
    assert predictor.estimate("Bash", "make other", session="mine").p50_s > 4


def test_waits_without_structure_are_not_claimed_to_be_known() -> None:
    """Names drawn at random: the confidence falls to about nothing, the age is all there is."""
    rng = random.Random(3)
    predictor = HierarchicalWaitPredictor()
    for i in range(1500):
        wait_s = rng.lognormvariate(0, 2)
        tool = rng.choice("abcdef")
        predictor.observe(tool, f"command {rng.randrange(30)}", wait_s, session=i % 20)
    found = [predictor.estimate(tool, "command 3", session=3).confidence for tool in "abcdef"]
    assert max(found) < 0.2


def test_what_is_known_beyond_the_age_is_told_with_confidence() -> None:
    rng = random.Random(3)
    predictor = HierarchicalWaitPredictor()
    for i in range(600):
        predictor.observe("quick", None, rng.lognormvariate(-3, 0.2), session=i % 20)
        predictor.observe("slow", None, rng.lognormvariate(3, 0.2), session=i % 20)
    now = predictor.estimate("quick", None, session=3)
    late = predictor.estimate("quick", None, age_s=600.0, session=3)
    assert now.confidence > 0.6
    assert late.confidence < 0.3


# --- unended waits ---


def test_unended_waits_lengthen_the_tail_instead_of_being_lost() -> None:
    """Most of the waits over 5 s are cut at 5 s; the median of all is 10 s."""
    rng = random.Random(4)
    cut, blind = HierarchicalWaitPredictor(), HierarchicalWaitPredictor()
    for _ in range(400):
        wait_s = rng.lognormvariate(2.3, 0.7)
        is_cut = wait_s > 5 and rng.random() < 0.7
        cut.observe("t", None, 5.0 if is_cut else wait_s, is_censored=is_cut)
        if not is_cut:
            blind.observe("t", None, wait_s)

    # The first ones are spread by what is believed before much was seen: too far.
    assert cut.estimate("t", None).p50_s == pytest.approx(10, rel=0.3)
    assert blind.estimate("t", None).p50_s < 8.5


def test_sessions_that_never_come_back_are_learned_as_ended_not_as_long() -> None:
    predictor = HierarchicalWaitPredictor()
    fresh = predictor.estimate("t", None).chance_ended
    assert fresh < 0.01
    for i in range(300):
        predictor.observe("t", None, 2.0)
        if i % 4 == 0:
            predictor.observe("t", None, 3600.0, is_censored=True)

    now, late = predictor.estimate("t", None), predictor.estimate("t", None, age_s=60.0)
    assert now.chance_ended == pytest.approx(0.2, abs=0.06)
    assert now.p90_s < 10
    assert fresh < now.chance_ended < late.chance_ended < 1
    assert now.curve.chances[-1] < 1 - now.chance_ended + 1e-9
    assert predictor.estimate("human", None).chance_ended < 0.15  # counted apart


# --- time-outs ---


def test_a_timeout_bounds_what_is_left() -> None:
    predictor = HierarchicalWaitPredictor()
    free = predictor.estimate("Task", None, age_s=10.0)
    bounded = predictor.estimate("Task", None, age_s=10.0, timeout_s=30.0)

    assert free.p90_s > 20
    assert bounded.p90_s == 20.0
    assert bounded.curve.times_s[-1] == pytest.approx(20.0)
    assert bounded.curve.chances[-1] == pytest.approx(1 - bounded.chance_ended)
    assert predictor.estimate("Task", None, age_s=31.0, timeout_s=30.0).p90_s == 0.0


def test_a_timeout_that_has_long_passed_was_wrong_and_is_no_longer_believed() -> None:
    predictor = HierarchicalWaitPredictor()
    late = predictor.estimate("Task", None, age_s=60.0, timeout_s=5.0)
    assert late == predictor.estimate("Task", None, age_s=60.0)
    assert late.p50_s > 10


def test_the_spike_of_a_timeout_that_nobody_states_is_learned() -> None:
    rng = random.Random(5)
    predictor = HierarchicalWaitPredictor()
    for _ in range(300):
        predictor.observe("Bash", "make", min(120.0, rng.lognormvariate(3.5, 1.2)))
    late = predictor.estimate("Bash", "make", age_s=100.0)

    assert late.p50_s == pytest.approx(20, abs=10)  # a bin reaches from 100 s to 121 s
    assert late.p90_s < 60


# --- figures that are stated ---


def test_a_stated_wait_wins_over_what_was_learned() -> None:
    predictor = HierarchicalWaitPredictor()
    for _ in range(100):
        predictor.observe("db_query", None, 0.05)
    estimate = predictor.estimate("db_query", None, expected_wait_s=30.0)

    assert estimate.p50_s == pytest.approx(30, rel=0.2)
    assert 15 < estimate.p10_s < estimate.p90_s < 60
    assert (estimate.source, estimate.num_observed) == ("stated wait", 0)
    assert estimate.confidence > 0.9


def test_a_stated_wait_that_has_passed_gives_way_to_the_heavy_tail() -> None:
    predictor = HierarchicalWaitPredictor()
    before = predictor.estimate("db_query", None, expected_wait_s=10.0, age_s=8.0)
    after = predictor.estimate("db_query", None, expected_wait_s=10.0, age_s=40.0)

    assert before.p50_s < 5
    assert after.p50_s > 40


def test_who_states_wrong_waits_is_soon_believed_no_more() -> None:
    predictor = HierarchicalWaitPredictor()
    for _ in range(40):
        for session, stated_s in (("liar", 30.0), ("honest", 3.0)):
            predictor.estimate("t", None, expected_wait_s=stated_s, session=session)
            predictor.observe("t", None, 3.0, session=session)
    liar = predictor.estimate("t", None, expected_wait_s=30.0, session="liar")
    honest = predictor.estimate("t", None, expected_wait_s=30.0, session="honest")

    assert liar.p50_s < 6
    assert honest.p50_s > 20


def test_a_sleep_is_taken_at_its_word() -> None:
    estimate = HierarchicalWaitPredictor().estimate("bash", "sleep 20; tail log", age_s=5.0)

    assert estimate.p50_s == pytest.approx(15, rel=0.2)
    assert estimate.source == "sleep 20"
