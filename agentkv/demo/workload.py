"""The sessions that the replay plays: every prompt, tool and wait is fixed before a server starts.

Why fixed: the next prompt holds the recorded answer and not the model's own, so the server with the
plugin and the stock server see the same tokens turn by turn and can be compared.
Where: built after the text and the tokenizer; `trace` builds the same values from a trace file.
"""

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from agentkv.demo.checkpoint import render_prompt
from agentkv.demo.client import Message
from agentkv.demo.text import RecordedSession
from agentkv.demo.waits import WaitSampler, command_of

MAX_COMMAND_CHARS = 200
MIN_TURNS = 3
CAPS_S = (12.0, 8.0, 6.0, 4.0, 3.0, 2.0, 1.0, 0.5)
TURN_S = 0.15  # about what a turn of the small model takes on two cores


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request, and the pause after it. `known_tokens`: how much of the prompt came before."""

    messages: tuple[Message, ...]
    prompt_tokens: int
    known_tokens: int
    wait_s: float = 0.0
    recorded_wait_s: float = 0.0
    tool: str | None = None
    command: str | None = None
    timeout_s: float | None = None

    def tags(self, *, is_last: bool) -> dict[str, Any]:
        """What an agent would tell the server about the pause; never the wait itself."""
        if is_last:
            return {"last_turn": True}
        named = {"tool": self.tool, "command": self.command, "timeout_s": self.timeout_s}
        return {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One session: its turns in order; the last one ends it."""

    session_id: str
    turns: tuple[PlannedTurn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions to play, and what was changed to make them fit (`notes`: shown and written out)."""

    source: str
    sessions: tuple[PlannedSession, ...]
    notes: Mapping[str, Any]

    def statement(self) -> str:
        """One sentence for the screen: where the sessions come from and what was scaled or cut."""
        return str(self.notes["statement"])


class PromptCounter:
    """Counts prompt tokens as the server will, and how many of them an earlier prompt had."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode = lru_cache(maxsize=256)(self._encode_text)

    def ids(self, messages: Iterable[Message]) -> tuple[int, ...]:
        """The token ids of the rendered prompt, with the opening of the answer."""
        return self._encode(render_prompt(messages))

    def known(self, messages: Sequence[Message], earlier: Iterable[Sequence[Message]]) -> int:
        """The longest run of tokens from the start that some earlier prompt had as well."""
        ids = self.ids(messages)
        return max((_common_length(ids, self.ids(other)) for other in earlier), default=0)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)


def shipped_workload(
    recorded: Sequence[RecordedSession],
    counter: PromptCounter,
    waits: WaitSampler,
    *,
    seed: int,
    num_sessions: int,
    max_context_tokens: int,
) -> Workload:
    """`num_sessions` of the shipped sessions in a seeded order (again from the start when short).

    A session ends before the turn whose prompt would pass `max_context_tokens`; those left with
    fewer than `MIN_TURNS` turns are passed over.
    """
    order = list(recorded)
    random.Random(f"{seed}/order").shuffle(order)
    sessions: list[PlannedSession] = []
    for source in itertools.islice(itertools.cycle(order), 2 * num_sessions + len(order)):
        session_id = f"{len(sessions) + 1:02d}-{source.session_id[:4]}"
        planned = _planned_turns(source, session_id, counter, waits, seed=seed)
        fits = itertools.takewhile(lambda turn: turn.prompt_tokens <= max_context_tokens, planned)
        turns = tuple(fits)
        if len(turns) >= MIN_TURNS:
            sessions.append(PlannedSession(session_id=session_id, turns=turns))
        if len(sessions) == num_sessions:
            break
    statement = (
        f"{len(sessions)} sessions of a coding agent (mini-swe-agent, recorded by LMCache), waits"
        " drawn from measured quantiles of each command's class; sessions end at"
        f" {max_context_tokens:,} prompt tokens."
    )
    notes = {"statement": statement, "max_context_tokens": max_context_tokens}
    return Workload(source="shipped", sessions=tuple(sessions), notes=notes)


def _planned_turns(
    source: RecordedSession,
    session_id: str,
    counter: PromptCounter,
    waits: WaitSampler,
    *,
    seed: int,
) -> Iterator[PlannedTurn]:
    """One by one: a long session's prompts take long to count, and most are not played."""
    messages: tuple[Message, ...] = ()
    earlier: list[tuple[Message, ...]] = []
    # The id opens the first message, so that two sessions over the same recording differ.
    opening = f"Session {session_id}.\n"
    for number, turn in enumerate(source.turns):
        messages += ({"role": "user", "content": opening + turn.added},)
        command = command_of(turn.answer)
        wait_s = waits.draw(command, f"{seed}/{session_id}/{number}")
        yield PlannedTurn(
            messages=messages,
            prompt_tokens=len(counter.ids(messages)),
            known_tokens=counter.known(messages, earlier[-1:]),
            wait_s=wait_s,
            recorded_wait_s=wait_s,
            tool="bash" if command else None,
            command=command[:MAX_COMMAND_CHARS] if command else None,
        )
        earlier.append(messages)
        messages += ({"role": "assistant", "content": turn.answer},)
        opening = ""


def cap_waits(workload: Workload, max_wait_s: float) -> Workload:
    """Cuts waits to `max_wait_s` and says in the notes how many were cut; nothing is scaled."""
    pauses = [turn for session in workload.sessions for turn in session.turns[:-1]]
    cut = sum(turn.recorded_wait_s > max_wait_s for turn in pauses)
    longest_s = max((turn.recorded_wait_s for turn in pauses), default=0.0)
    sessions = tuple(
        replace(
            session,
            turns=tuple(
                replace(turn, wait_s=min(turn.recorded_wait_s, max_wait_s))
                for turn in session.turns
            ),
        )
        for session in workload.sessions
    )
    waits_note = {
        "max_wait_s": max_wait_s,
        "waits_cut": cut,
        "waits_total": len(pauses),
        "longest_wait_s": round(longest_s, 3),
    }
    return replace(workload, sessions=sessions, notes={**workload.notes, **waits_note})


def fitting_cap_s(workload: Workload, *, num_agents: int, budget_s: float) -> float:
    """The largest of `CAPS_S` with which a replay should last no longer than `budget_s`.

    The length is estimated: `num_agents` agents, all waits, and `TURN_S` for each turn.
    Returns the smallest cap when none fits.
    """
    for cap_s in CAPS_S:
        agents = [0.0] * num_agents
        for session in workload.sessions:
            waits_s = sum(min(turn.recorded_wait_s, cap_s) for turn in session.turns[:-1])
            heapq.heapreplace(agents, agents[0] + waits_s + TURN_S * len(session.turns))
        if max(agents) <= budget_s:
            return cap_s
    return CAPS_S[-1]


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
