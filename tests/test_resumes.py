"""What a turn found when it came back: the sources of its tokens add up, whatever is claimed."""

from __future__ import annotations

import pytest

from agentkv import metrics
from agentkv.policy import Action
from agentkv.resumes import action_of
from tests.test_controller import BLOCK, World


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
