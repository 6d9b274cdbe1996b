"""`Lessons`: what is noted reaches the predictor when it is asked for, once and in order."""

from __future__ import annotations

from typing import Any

from agentkv.events import TurnTag
from agentkv.lessons import Lessons
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.sessions import SessionKey

KEY = SessionKey("scope", "a")
BASH = TurnTag(tool="bash", command="pytest -q")


class Heard(HierarchicalWaitPredictor):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[Any, ...]] = []

    def observe(self, *args: Any, **kwargs: Any) -> None:
        self.waits.append((*args, kwargs["session"], kwargs["is_censored"]))
        super().observe(*args, **kwargs)


def test_a_wait_is_told_when_learning_and_only_once() -> None:
    predictor = Heard()
    lessons = Lessons(predictor)
    lessons.note(KEY, BASH, 3.0)
    assert predictor.waits == []
    lessons.learn()
    lessons.learn()
    assert predictor.waits == [("bash", "pytest -q", 3.0, KEY, False)]


def test_an_abandoned_wait_counts_as_one_that_would_have_been_longer() -> None:
    predictor = Heard()
    lessons = Lessons(predictor)
    lessons.note(KEY, BASH, 3.0)
    lessons.note_abandoned(KEY, BASH, 900.0)
    lessons.learn()
    assert [(wait[2], wait[-1]) for wait in predictor.waits] == [(3.0, False), (900.0, True)]
