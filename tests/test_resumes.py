"""What a turn found when it came back: the sources of its tokens add up, whatever is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv import metrics
from agentkv.events import TurnTag
from agentkv.policy import Action
from agentkv.resumes import action_of
from agentkv.sessions import Turn
from tests.test_controller import BLOCK, World
from tests.test_prefix_tree import chain


def arrive(world: World, blocks: range) -> Turn:
    """A turn of "a" whose prompt is these blocks."""
    hashes = chain(*blocks)
    return world.controller.turn_arrived(
        "r", name="a", scope="", hashes=hashes, prompt_tokens=len(hashes) * BLOCK, tag=TurnTag()
    )


def schedule(world: World, *, gpu: int = 0, dram: int = 0) -> str | None:
    """It gets its blocks, so many of them found."""
    return world.controller.turn_scheduled(
        "r", gpu_hit_tokens=gpu * BLOCK, dram_hit_tokens=dram * BLOCK
    )


def sources(world: World) -> dict[str, float]:
    counters = world.recorder.take().counters.items()
    return {labels[0]: n for (metric, labels), n in counters if metric is metrics.RESUME_TOKENS}


@pytest.mark.parametrize(
    ("gpu", "dram", "tier", "recomputed"),
    [
        (0, 0, "none", 10),
        (4, 0, "gpu", 6),
        (0, 4, "dram", 6),
        (4, 6, "mixed", 0),
        (10, 1, "mixed", 0),
    ],
)
def test_every_prompt_token_of_a_resumed_turn_has_one_source(
    gpu: int, dram: int, tier: str, recomputed: int
) -> None:
    world = World()
    world.turn("a", range(10))
    world.turn("a", range(12), gpu=gpu * BLOCK, dram=dram * BLOCK)
    [record] = world.records("resume")
    assert record["tier"] == tier and record["recomputed_tokens"] == recomputed * BLOCK
    assert sum(sources(world).values()) == 12 * BLOCK


@pytest.mark.parametrize(
    ("gpu", "dram", "ssd", "source"),
    [
        (10, 0, 0, "gpu"),
        (4, 0, 0, "recomputed"),
        (4, 6, 0, "dram"),
        (4, 6, 5, "ssd"),
        (4, 6, 2, "gpu"),
        (0, 0, 0, "recomputed"),
    ],
)
def test_a_resumed_turn_has_the_source_of_most_of_what_was_known(
    gpu: int, dram: int, ssd: int, source: str
) -> None:
    world = World()
    world.turn("a", range(10))
    arrive(world, range(40)).promoted["ssd"] = ssd * BLOCK
    assert schedule(world, gpu=gpu, dram=dram) == source


def test_a_turn_that_goes_on_from_nothing_says_so_and_a_first_one_resumes_nothing() -> None:
    world = World()
    arrive(world, range(10))
    assert schedule(world, gpu=3) is None
    world.controller.turn_finished("r", hashes=chain(*range(10)), num_tokens=10 * BLOCK)
    arrive(world, range(50, 60))
    assert schedule(world) == "new"
    assert schedule(world) is None, "it has its blocks already"


def test_a_first_turn_resumes_nothing() -> None:
    world = World()
    world.turn("a", range(10))
    assert sources(world) == {} and world.records("resume") == []


def test_a_pause_is_held_until_something_was_decided() -> None:
    world = World()
    world.turn("a", range(10))
    (session,) = world.controller.sessions
    assert session.pause is not None
    session.pause.decision = None
    assert action_of(session.pause) is Action.HOLD


# --- what it was worth ---

BLOCKS = 50
TOKENS = BLOCKS * BLOCK
RELOAD_S = (TOKENS + 1) * 1024 / 1e9
PREFILL_S = (TOKENS + 1) / 10_000


def resume(world: World, *, wait_s: float, **hits: int) -> dict[str, Any]:
    """What the ledger says of the next turn of the only session."""
    world.clock.advance(wait_s)
    world.turn("a", range(BLOCKS + 1), **hits)
    return world.records("resume")[-1]


def regrets(world: World) -> dict[str, float]:
    counters = world.recorder.take().counters.items()
    return {labels[0]: n for (metric, labels), n in counters if metric is metrics.REGRET_SECONDS}


def test_a_long_wait_makes_the_right_swap_no_regret_and_a_short_one_a_known_one() -> None:
    world = World(prices={"dram_over_hbm": 0})
    world.press()
    world.turn("a", range(BLOCKS), TurnTag(expected_wait_s=600))
    record = resume(world, wait_s=600, dram=TOKENS)
    assert record["best_action"] == "swap" and record["regret_s"] == 0
    assert record["hindsight_s"]["recompute"] == pytest.approx(PREFILL_S, rel=0.05)
    assert record["cost_s"] == pytest.approx(RELOAD_S, rel=0.01)
    assert regrets(world) == {}
    world = World(prices={"dram_over_hbm": 0})
    world.press()
    world.turn("a", range(BLOCKS), TurnTag(expected_wait_s=600))
    record = resume(world, wait_s=0, dram=TOKENS)
    assert record["action"] == "swap" and record["best_action"] == "hold"
    assert record["regret_s"] == pytest.approx(RELOAD_S, rel=0.01)
    assert regrets(world) == {"swap": record["regret_s"]}


def test_a_hold_for_which_others_waited_is_regretted() -> None:
    world = World(policy="always_hold")
    world.press()
    world.turn("a", range(BLOCKS), TurnTag(expected_wait_s=1))
    world.clock.advance(20)
    world.press()
    world.turn("b", range(500, 501))
    record = resume(world, wait_s=0, gpu=TOKENS)
    assert record["best_action"] in ("swap", "recompute")
    assert record["regret_s"] == pytest.approx(20.5 - record["hindsight_s"]["swap"], rel=0.05)


def test_a_hold_in_peace_is_not_regretted_unless_its_blocks_are_gone() -> None:
    calm = World()
    calm.turn("a", range(BLOCKS))
    assert resume(calm, wait_s=100, gpu=TOKENS)["regret_s"] == 0
    robbed = World()
    robbed.turn("a", range(BLOCKS))
    record = resume(robbed, wait_s=0.1)
    assert record["recomputed_tokens"] == TOKENS
    assert record["cost_s"] == pytest.approx(PREFILL_S, rel=0.05)
    swapped_s = RELOAD_S + 0.05 * 0.1
    assert record["regret_s"] == pytest.approx(record["cost_s"] - swapped_s, rel=0.05)


def test_a_turn_that_does_not_go_on_from_the_kv_makes_any_keeping_a_loss() -> None:
    world = World(policy="always_hold")
    world.press()
    world.turn("a", range(BLOCKS), TurnTag(expected_wait_s=1))
    world.clock.advance(3)
    world.press()
    world.turn("a", range(900, 950))
    [record] = world.records("resume")
    assert record["best_action"] == "recompute" and record["hindsight_s"]["recompute"] == 0
    assert record["regret_s"] > 1


def test_only_what_the_session_alone_had_counts() -> None:
    """All but ten blocks are another live session's too, and are found in the pool."""
    world = World(prices={"dram_over_hbm": 0})
    world.press()
    world.turn("other", range(BLOCKS - 10))
    world.turn("a", range(BLOCKS), TurnTag(expected_wait_s=600))
    record = resume(world, wait_s=1, gpu=(BLOCKS - 10) * BLOCK, dram=10 * BLOCK)
    assert world.records("pause")[-2]["kv_bytes"] == 10 * BLOCK * 1024
    assert record["cost_s"] == pytest.approx(0.2 * RELOAD_S, rel=0.02)
    assert record["cost_s"] < record["hindsight_s"]["recompute"] < 0.3 * PREFILL_S


def test_a_pause_whose_decisions_are_forgotten_is_still_recorded() -> None:
    world = World()
    world.turn("a", range(BLOCKS))
    [session] = world.controller.sessions
    assert session.pause is not None
    world.ledger.choices.close(session.pause.pause_id, now_s=0.0, price=0.0)
    record = resume(world, wait_s=1, gpu=TOKENS)
    assert record["tier"] == "gpu" and record["regret_s"] is None and record["hindsight_s"] is None


def test_a_long_pause_outlives_the_ring() -> None:
    world = World()
    world.turn("a", range(BLOCKS))
    for _ in range(5000):
        world.ledger.record("noise")
    assert resume(world, wait_s=1, gpu=TOKENS)["regret_s"] == 0


def test_the_wait_ends_when_the_turn_arrives_not_when_it_gets_its_blocks() -> None:
    world = World(policy="always_hold")
    world.press()
    world.turn("a", range(BLOCKS))
    world.clock.advance(2)
    arrive(world, range(BLOCKS + 1))
    world.clock.advance(8)
    world.press()
    schedule(world, gpu=BLOCKS)
    [record] = world.records("resume")
    assert record["wait_s"] == 2 and record["cost_s"] == pytest.approx(2.0)


def test_kv_that_came_up_from_a_tier_below_cost_its_way_up() -> None:
    world = World(prices={"dram_over_hbm": 0})
    world.press()
    world.turn("a", range(BLOCKS), TurnTag(expected_wait_s=600))
    [session] = world.controller.sessions
    assert session.pause is not None
    session.pause.slow_s = 0.5
    world.clock.advance(600)
    arrive(world, range(BLOCKS + 1)).promoted["ssd"] = TOKENS
    schedule(world, dram=BLOCKS)
    [record] = world.records("resume")
    assert record["tier"] == "ssd" and record["cost_s"] == pytest.approx(RELOAD_S + 0.5, rel=0.01)
