"""How a turn ended, as its reply shows it.

What: the values that every reply watcher comes to, whatever the API. Why: chat completions,
Responses and Anthropic messages say the same things in three ways. Where: made by `replies`, read
by `calls` and by the endpoint plugin, which turns it into a pause event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` as the model wrote them: JSON as a rule, but not always."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The end of a turn; `request_id` is the id in the reply's body, None if there was none.

    tool: the model made `calls`, which the client now runs. human: it ended by itself without one,
    so a human is next or nobody; an agent that finds its calls in the text itself looks the same.
    cut: length limit, error, abort or a stream that broke off; nothing in it may be run, so that
    `calls` is empty.
    """

    request_id: str | None
    calls: tuple[Call, ...]
    stop: Literal["tool", "human", "cut"]
