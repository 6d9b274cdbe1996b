"""One form for all traces: sessions of requests, each with what it shares and the wait after it.

Read by `readers` from files, turned into block chains by `workload`. Tokens throughout; waits in
seconds, None where the source has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_SHARED_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class TraceTurn:
    """One request. It begins with the first `prefix_tokens` tokens (prompt, then answer) of the
    session's turn number `prefix_turn`; -1: with nothing of the session's own.

    `tool`, `command`, `timeout_s`: what a server may know of the wait that follows.
    """

    prompt_tokens: int
    output_tokens: int
    prefix_turn: int = -1
    prefix_tokens: int = 0
    wait_s: float | None = None
    tool: str | None = None
    command: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class TraceSession:
    """`shared_tokens` of its first prompt are those of every session with the same `shared_key`;
    None where the source does not say: see `guess_shared`.
    """

    name: str
    turns: tuple[TraceTurn, ...]
    shared_key: str = ""
    shared_tokens: int | None = 0

    @property
    def longest_tokens(self) -> int:
        """Tokens of the largest request, prompt and answer."""
        return max(turn.prompt_tokens + turn.output_tokens for turn in self.turns)


def fill_waits(sessions: list[TraceSession], *, cap_s: float | None = None) -> list[TraceSession]:
    """Gives the median of all waits where one is missing, and cuts those beyond `cap_s`."""
    known = sorted(t.wait_s for s in sessions for t in s.turns[:-1] if t.wait_s is not None)
    median_s = known[len(known) // 2] if known else 0.0

    def wait_of(turn: TraceTurn) -> float:
        wait_s = median_s if turn.wait_s is None else turn.wait_s
        return wait_s if cap_s is None else min(wait_s, cap_s)

    return [
        replace(s, turns=tuple(replace(t, wait_s=wait_of(t)) for t in s.turns)) for s in sessions
    ]


def guess_shared(sessions: list[TraceSession]) -> list[TraceSession]:
    """Where a source does not say what its sessions share: most of its shortest first prompt.

    One harness sends one system prompt and one set of tools, and its shortest first prompt holds
    little else.
    """
    shortest: dict[str, int] = {}
    for session in sessions:
        first = session.turns[0].prompt_tokens
        shortest[session.shared_key] = min(first, shortest.get(session.shared_key, first))
    return [
        replace(s, shared_tokens=int(_SHARED_SHARE * shortest[s.shared_key]))
        if s.shared_tokens is None
        else s
        for s in sessions
    ]
