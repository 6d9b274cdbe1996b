"""What the agents play, one workload for each seed: the shipped recording, or traces.

Every system plays the same sessions of a seed, token by token. Waits are never scaled; a cap is
stated and the waits it cuts are counted. Several traces share the sessions evenly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentkv.bench.replay_settings import ReplaySettings
from agentkv.demo.client import Message
from agentkv.demo.text import FillText, recorded_sessions, training_texts
from agentkv.demo.trace import trace_workload
from agentkv.demo.waits import shipped_waits
from agentkv.demo.workload import (
    PlannedSession,
    PromptCounter,
    Workload,
    cap_waits,
    shipped_workload,
)


@dataclass(frozen=True, slots=True)
class WorkloadMaker:
    """Makes the workload of any seed with one tokenizer."""

    settings: ReplaySettings
    counter: PromptCounter
    fill: FillText

    @classmethod
    def of(cls, settings: ReplaySettings, tokenizer: Tokenizer) -> WorkloadMaker:
        texts = training_texts(recorded_sessions())
        return cls(settings, PromptCounter(tokenizer), FillText(tokenizer, texts))

    def workload(self, seed: int) -> Workload:
        """The sessions of a seed. Raises ConfigError for a trace that cannot be read."""
        parts = list(self._parts(seed))
        sessions = tuple(session for part in parts for session in part.sessions)
        notes: dict[str, Any] = {"statement": " ".join(part.statement() for part in parts)}
        notes["parts"] = [dict(part.notes) for part in parts]
        whole = Workload(", ".join(part.source for part in parts), sessions, notes)
        cap_s = self.settings.max_wait_s
        return cap_waits(whole, math.inf if cap_s is None else cap_s)

    def _parts(self, seed: int) -> Iterator[Workload]:
        settings = self.settings
        if not settings.traces:
            yield shipped_workload(
                recorded_sessions(),
                self.counter,
                shipped_waits(),
                seed=seed,
                num_sessions=settings.num_sessions,
                max_context_tokens=settings.max_context_tokens,
            )
        share = -(-settings.num_sessions // max(1, len(settings.traces)))
        for path in settings.traces:
            yield trace_workload(
                path,
                self.counter,
                self.fill,
                seed=seed,
                num_sessions=share,
                max_context_tokens=settings.max_context_tokens,
                max_turns=settings.max_turns,
            )


def content_hash(path: Path) -> str:
    """SHA-256 of a trace file: the same sessions can only be made again from the same bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def waits_note(workload: Workload) -> str:
    """What was done to the waits, in one sentence."""
    notes = workload.notes
    longest = f"the longest of {notes['waits_total']} is {notes['longest_wait_s']:.0f} s"
    if not notes["waits_cut"]:
        return f"Waits are played as recorded; {longest}."
    return (
        f"Waits are not scaled, but cut at {notes['max_wait_s']:g} s: {notes['waits_cut']} were "
        f"longer; {longest}."
    )


def stamped(workload: Workload, stamp: str, counter: PromptCounter) -> Workload:
    """The same sessions with prompts that begin otherwise, for a server that may know them.

    All sessions get the same stamp, so what they share they still share.
    """
    return replace(
        workload, sessions=tuple(_stamped(each, stamp, counter) for each in workload.sessions)
    )


def _stamped(session: PlannedSession, stamp: str, counter: PromptCounter) -> PlannedSession:
    turns = []
    for turn in session.turns:
        first, *rest = turn.messages
        opening: Message = {**first, "content": f"Run {stamp}.\n{first['content']}"}
        messages = (opening, *rest)
        added = len(counter.ids(messages)) - turn.prompt_tokens
        known = turn.known_tokens + added if turn.known_tokens else 0
        turns.append(
            replace(
                turn,
                messages=messages,
                prompt_tokens=turn.prompt_tokens + added,
                known_tokens=known,
            )
        )
    return PlannedSession(f"{stamp}-{session.session_id}", tuple(turns))
