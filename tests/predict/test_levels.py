"""How a level leans on the one above: bin by bin, so that the tail is the one above."""

from __future__ import annotations

import numpy as np
import pytest

from agentkv.predict import histogram as hist
from agentkv.predict.levels import Key, Level, Levels


def masses(hazards: hist.Hazards) -> hist.Mass:
    return hist.masses_of(hazards[None, :])[0]


def test_hazards_and_masses_say_the_same() -> None:
    mass = hist.ignorance()
    assert masses(hist.hazards_of(mass)) == pytest.approx(mass)


def test_a_level_that_saw_nothing_believes_the_one_above() -> None:
    above = hist.ignorant_hazards()
    assert Level().lean_on(above, 2.0) == pytest.approx(above)


def test_a_level_that_saw_much_believes_itself() -> None:
    own = hist.lognormal(5.0, 0.5)
    found = masses(Level(own * 1000, 1000).lean_on(hist.ignorant_hazards(), 2.0))
    assert found.sum() == pytest.approx(1.0)
    assert abs(found - own).sum() < 0.02


def test_what_outlives_all_that_was_seen_goes_on_as_the_level_above_says() -> None:
    above = hist.pareto_tail()
    level = Level()
    for _ in range(500):
        level.add(hist.observed(0.05))
    found = masses(level.lean_on(hist.hazards_of(0.5 * above + 0.5 * hist.ignorance()), 2.0))
    expected = 0.5 * above + 0.5 * hist.ignorance()
    far = slice(hist.bin_of(1.0), None)
    assert found[far] / found[far].sum() == pytest.approx(
        expected[far] / expected[far].sum(), rel=1e-6
    )


def test_adding_shows_at_once_and_old_waits_fade() -> None:
    level = Level()
    for wait_s in [1.0] * 300 + [50.0] * 300:
        level.add(hist.observed(wait_s))
        level.lean_on(hist.ignorant_hazards(), 2.0)
    found = masses(level.lean_on(hist.ignorant_hazards(), 2.0))
    assert found[hist.bin_of(50.0)] > 2 * found[hist.bin_of(1.0)]
    assert level.num_observed == 600 and level.weight < 210


def test_a_prior_level_is_copied_before_it_learns() -> None:
    key = Key("tool", ("edit",))
    prior = Level(hist.lognormal(1.0, 0.5) * 10, 10.0)
    before = prior.mass.copy()
    levels = Levels(4, {key: prior})
    levels.add(key, hist.observed(30.0))
    found = levels.get(key)

    assert found is not None and found is not prior
    assert (found.weight, found.num_observed) == (11.0, 1)
    assert np.array_equal(prior.mass, before)
