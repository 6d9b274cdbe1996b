"""Who gives way first: by worth where the policy tells it, and always decided anew when reached."""

from __future__ import annotations

import pytest

from agentkv.events import EMPTY_TAG, TurnTag
from agentkv.policy import Action
from agentkv.portfolio import Victim
from tests.test_controller import World
from tests.test_prefix_tree import chain

SOON = TurnTag(tool="bash", expected_wait_s=2.0)
LATE = TurnTag(tool="bash", expected_wait_s=3000.0)


def _paused(world: World, name: str, tag: TurnTag, first_block: int) -> None:
    world.turn(name, range(first_block, first_block + 10), tag)


def _crowded(policy: str) -> World:
    """Three sessions, in the order of their pauses: late, unknown, soon."""
    world = World(policy=policy)
    for name, tag, first in (("late", LATE, 100), ("unknown", EMPTY_TAG, 200), ("soon", SOON, 300)):
        _paused(world, name, tag, first)
    world.controller.appraiser.observe_demand(wanted_blocks=30, worthless_blocks=0)
    return world


def _names(victims: list[Victim]) -> list[str]:
    return [victim.session.key.name for victim in victims]


def test_the_oldest_goes_first_where_predictions_do_not_pay() -> None:
    world = World(policy="expected_cost")
    for first, (name, tag) in enumerate((("old", SOON), ("new", LATE))):
        _paused(world, name, tag, 100 * (first + 1))
        world.clock.advance(5.0)
    world.controller.appraiser.observe_demand(wanted_blocks=30, worthless_blocks=0)
    world.controller.portfolio.benefit.is_worth_it = False
    assert _names(list(world.controller.victims()))[0] == "old"


def test_with_trust_in_predictions_the_late_one_goes_first() -> None:
    world = World(policy="expected_cost")
    for first, (name, tag) in enumerate((("old", SOON), ("new", LATE))):
        _paused(world, name, tag, 100 * (first + 1))
        world.clock.advance(0.5)
    world.controller.appraiser.observe_demand(wanted_blocks=30, worthless_blocks=0)
    world.controller.portfolio.benefit.is_worth_it = True
    assert _names(list(world.controller.victims())) == ["new", "old"]


def test_everybody_gives_way_in_the_end_and_no_hold_is_left() -> None:
    for policy in ("expected_cost", "break_even", "always_hold", "lru"):
        world = _crowded(policy)
        victims = list(world.controller.victims())
        assert sorted(_names(victims)) == ["late", "soon", "unknown"], policy
        assert all(victim.action is not Action.HOLD for victim in victims), policy
        assert world.controller.pauses.kept() == []


def test_a_hold_that_has_to_go_says_why_in_the_ledger() -> None:
    world = _crowded("always_hold")
    next(world.controller.victims())
    (record,) = [r for r in world.ledger.records() if r["kind"] == "redecide"]
    assert record["action"] == "swap" and "nothing else is left" in record["reason"]


def test_one_that_is_worth_more_when_looked_at_again_waits_for_its_turn() -> None:
    """It was the worst when it was decided; meanwhile its client has said that it comes soon."""
    world = _crowded("expected_cost")
    assert _names([next(world.controller.victims())]) == ["late"]
    world = _crowded("expected_cost")
    (late,) = [s for s in world.controller.sessions if s.key.name == "late"]
    assert late.pause is not None
    late.pause.tag = TurnTag(tool="bash", expected_wait_s=0.1)
    assert _names([next(world.controller.victims())]) != ["late"]


def test_a_prefetch_displaces_only_what_is_worth_much_less() -> None:
    world = _crowded("expected_cost")
    (soon,) = [s for s in world.controller.sessions if s.key.name == "soon"]
    (late,) = [s for s in world.controller.sessions if s.key.name == "late"]
    now_s = world.clock.monotonic_s()
    for session in (soon, late):
        assert session.pause is not None
        world.controller.pauses.give_up(session, session.pause)
        world.controller.pauses.take_back(session)
    assert "late" in _names(
        list(world.controller.portfolio.later_returns(now_s + 2.0, besides=soon))
    )
    world = _crowded("expected_cost")
    (late,) = [s for s in world.controller.sessions if s.key.name == "late"]
    assert _names(list(world.controller.portfolio.later_returns(now_s, besides=late))) == []


def test_dram_drops_the_copy_that_is_worth_least_not_the_oldest() -> None:
    world = World(policy="expected_cost")
    for first, (name, tag) in enumerate((("old", SOON), ("new", LATE))):
        _paused(world, name, tag, 100 * (first + 1))
        world.clock.advance(0.5)
    world.controller.appraiser.observe_demand(wanted_blocks=30, worthless_blocks=0)
    dropped = [session.key.name for session in world.controller.portfolio.to_drop(1 << 20)]
    assert dropped == ["new", "old"]


def test_where_predictions_do_not_pay_dram_is_left_to_lru() -> None:
    world = _crowded("expected_cost")
    world.controller.portfolio.benefit_of_copies.is_worth_it = False
    assert list(world.controller.portfolio.to_drop(1 << 20)) == []
    assert list(_crowded("break_even").controller.portfolio.to_drop(1 << 20)) == []


def test_one_whose_tool_is_done_displaces_whatever_returns_later() -> None:
    world = _crowded("expected_cost")
    (late,) = [s for s in world.controller.sessions if s.key.name == "late"]
    assert late.pause is not None
    now_s = world.clock.monotonic_s()
    late.pause.tool_done_s = now_s
    assert "soon" in _names(list(world.controller.portfolio.later_returns(now_s, besides=late)))


@pytest.mark.parametrize("how", ["returned", "ended", "cleared"])
def test_the_benefit_of_ranking_is_measured_on_every_pause_until_it_is_over(how: str) -> None:
    world = World(policy="expected_cost")
    _paused(world, "a", SOON, 100)
    (session,) = world.controller.sessions
    portfolio = world.controller.portfolio
    for benefit in (portfolio.benefit, portfolio.benefit_of_copies):
        assert list(benefit._open) == [session.key]
    if how == "ended":
        world.controller.end(session)
    elif how == "cleared":
        world.controller.clear()
    else:
        world.controller.turn_arrived(
            "next",
            name="a",
            scope="",
            hashes=chain(*range(100, 111)),
            prompt_tokens=11 * 16,
            tag=EMPTY_TAG,
        )
    for benefit in (portfolio.benefit, portfolio.benefit_of_copies):
        assert list(benefit._open) == []


def test_what_was_decided_long_ago_is_decided_anew_before_dram_drops_it() -> None:
    world = _crowded("expected_cost")
    world.clock.advance(60.0)
    world.controller.appraiser.observe_demand(wanted_blocks=30, worthless_blocks=0)
    assert len(list(world.controller.portfolio.to_drop(1 << 20))) == 3
    now_s = world.clock.monotonic_s()
    for session in world.controller.sessions:
        assert session.pause is not None and session.pause.decided_s == now_s


def test_a_copy_in_dram_is_worth_what_computing_it_again_takes() -> None:
    world = _crowded("expected_cost")
    (soon,) = [s for s in world.controller.sessions if s.key.name == "soon"]
    assert soon.pause is not None
    decision = world.controller.decide(soon, soon.pause)
    view = world.controller.appraiser.view(soon, soon.pause, world.clock.monotonic_s())
    assert view.reload_s < view.recompute_s
    assert decision.copy_factor == pytest.approx(view.recompute_s / view.reload_s)
    portfolio = world.controller.portfolio
    assert portfolio.benefit_of_copies._open[soon.key].loss_s == pytest.approx(view.recompute_s)
    assert portfolio.benefit._open[soon.key].loss_s == pytest.approx(view.reload_s)


def test_ranking_what_dram_holds_waits_a_while_before_it_is_done_again() -> None:
    world = _crowded("expected_cost")
    assert len(list(world.controller.portfolio.to_drop(1 << 20))) == 3
    assert list(world.controller.portfolio.to_drop(1 << 20)) == []
    world.clock.advance(0.01)
    assert len(list(world.controller.portfolio.to_drop(1 << 20))) == 3


def test_what_dram_drops_next_goes_on_where_it_stopped() -> None:
    """A session of which something is left comes again; one that has returned does not."""
    world = _crowded("expected_cost")
    portfolio = world.controller.portfolio
    names = [session.key.name for session in portfolio.to_drop(1 << 20)]
    world.clock.advance(0.01)

    def next_two() -> list[str]:
        found = []
        for session in portfolio.to_drop(1 << 20):
            found.append(session.key.name)
            if len(found) == 2:
                break
        return found

    assert next_two() == names[:2] and next_two() == names[1:]
    (last,) = [session for session in world.controller.sessions if session.key.name == names[2]]
    last.pause = None
    assert next_two() == []
