"""What faults are planted with: a healthy session, changed turn by turn as a harness would."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.doctor.builders import Agent, Body, head_of

NUM_TURNS = 8

Fault = Callable[[int], list[Any]]


def each_head(seed: int, change: Callable[[str, int, random.Random], str]) -> list[Body]:
    """A session whose system prompt is changed for every turn."""
    random_ = random.Random(seed)
    bodies = Agent(seed).run(NUM_TURNS)
    for turn, body in enumerate(bodies):
        head_of(body)["content"] = change(head_of(body)["content"], turn, random_)
    return bodies


def each_body(seed: int, change: Callable[[Body, int], None], **agent: Any) -> list[Body]:
    bodies = Agent(seed, **agent).run(NUM_TURNS)
    for turn, body in enumerate(bodies):
        change(body, turn)
    return bodies
