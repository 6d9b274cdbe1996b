"""What the engines told those who watch, for as long as it holds. Pure.

    a poll ─► did anything happen since the last answer? ─► no: the same again, from here
                                                        └─► yes: the engines are asked

Why: a question is a step of the engine, after which vLLM's workers spin for a second; asked every
two seconds, an idle engine would burn half a core per worker for being looked at. Where: used by
`watching`. What happens is seen in requests that pass (`activity`) and in replies of the engine
that nobody asked for; other API processes' requests are not seen, so an answer has an age limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.signals import ControlReply

MAX_AGE_S = 300.0
SETTLE_S = 3.0
"""Copies and prefetches go on after a request: an answer from so soon after one does not last."""

MAX_ANSWERS = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engines said, by rank, to the question for `limit` sessions and for records after
    `since_s`. `asked_s` is monotonic, `as_of_s` Unix time; `num_unasked`: see `Mailbox`."""

    replies: Sequence[tuple[int, ControlReply]]
    since_s: float
    limit: int
    asked_s: float
    as_of_s: float
    num_unasked: int


class LastAnswers:
    """The last answers for each scope and limit: who asks for more and who asks for longer ago must
    not take each other's answer away. Owned by the event loop."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, int], Answer] = OrderedDict()

    def keep(self, scope: str, answer: Answer) -> None:
        """Instead of the one before to the same question."""
        key = scope, answer.limit
        self._answers[key] = answer
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def find(
        self,
        scope: str,
        *,
        since_s: float,
        limit: int,
        now_s: float,
        active_s: float,
        num_unasked: int,
    ) -> Answer | None:
        """One that still holds and says what is asked; `active_s`: see `Activity`."""
        for (told, _), answer in self._answers.items():
            is_all = told == scope and answer.limit >= limit and answer.since_s <= since_s
            is_fresh = now_s - answer.asked_s < MAX_AGE_S and active_s + SETTLE_S < answer.asked_s
            if is_all and is_fresh and answer.num_unasked == num_unasked:
                return answer
        return None
