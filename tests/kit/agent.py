"""One agent run against a rig: turns that build on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit.rig import Result, Rig, blocks, prompt


class Agent:
    """One agent run: each turn's prompt is all before it plus what the tool said.

    `shared` begins the context of several agents; an anonymous one sends no session id.
    """

    def __init__(
        self,
        rig: Rig,
        name: str,
        seed: int,
        num_blocks: float,
        *,
        shared: Sequence[int] = (),
        is_anonymous: bool = False,
    ) -> None:
        self.rig = rig
        self.name = name
        self.session = None if is_anonymous else name
        self.context = [*shared, *prompt(seed, blocks(num_blocks))]
        self._seed = seed
        self._num_turns = 0
        self._last = ""

    def arrive(self, *, tool_tokens: int = 5, max_tokens: int = 4, **kwargs: Any) -> str:
        """The next turn enters the queue; returns its request id."""
        if self._num_turns:
            self.context += self.rig.results[self._last].tokens
            self.context += prompt(self._seed * 1000 + self._num_turns, tool_tokens)
        self._last = f"{self.name}.{self._num_turns}"
        self._num_turns += 1
        kwargs = {"session": self.session, "max_tokens": max_tokens, **kwargs}
        self.rig.add(self._last, self.context, **kwargs)
        return self._last

    def turn(self, **kwargs: Any) -> Result:
        """A whole turn, alone on the engine."""
        request_id = self.arrive(**kwargs)
        self.rig.settle()
        self.rig.check_answer(request_id)
        return self.rig.results[request_id]
