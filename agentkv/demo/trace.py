"""Reads an agentkv-trace-v1 file and builds the same workload values from it.

A trace has token counts and no text: counts are scaled down by one factor so that the longest
prompt fits the small model, and the text is cut from the shipped recording, the same each time, so
prompts stay append-only where the trace's are. Waits are never scaled. All changes are stated.
Used instead of the shipped workload by `agentkv demo --trace FILE`.
"""

import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from agentkv.demo.client import Message
from agentkv.demo.text import FillText
from agentkv.demo.workload import (
    MIN_TURNS,
    PlannedSession,
    PlannedTurn,
    PromptCounter,
    Workload,
)
from agentkv.errors import ConfigError

MAIN = "main"
MIN_MESSAGE_TOKENS = 4
TEMPLATE_TOKENS = 6  # about as many as the chat template puts around one message
# A prompt that keeps less of its source than this was edited or compacted, not appended to.
APPENDED_SHARE = 0.95


class TraceTool(BaseModel):
    """One tool call of a row; only what a server may see before the pause."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str
    head: str | None = None
    cls: str | None = None
    timeout_s: float | None = None


class TraceRow(BaseModel):
    """One line of an agentkv-trace-v1 file: one request of an agent, and the pause after it."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    session_id: str
    turn: NonNegativeInt
    input_tokens: NonNegativeInt
    output_tokens: NonNegativeInt = 0
    prefix_tokens: NonNegativeInt = 0
    new_input_tokens: NonNegativeInt | None = None
    prefix_turn: int | None = None
    prefix_row: int | None = None
    shared_prefix_tokens: NonNegativeInt = 0
    traj: str = MAIN
    tools: tuple[TraceTool, ...] | None = None
    wait_s: float | None = None
    gap_s: float | None = None

    def pause_s(self) -> float | None:
        """The recorded pause after this turn; None when the trace has none."""
        wait_s = self.wait_s if self.wait_s is not None else self.gap_s
        return None if wait_s is None else max(wait_s, 0.0)


def read_trace(path: Path) -> dict[str, list[TraceRow]]:
    """Session id to rows, both in file order. Raises ConfigError naming the line that is wrong."""
    sessions: dict[str, list[TraceRow]] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = TraceRow.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"]) or "line"
            raise ConfigError(
                f"--trace {path}, line {number}: {place}: {problem['msg']};"
                " each line must be an agentkv-trace-v1 object"
            ) from None
        sessions.setdefault(row.session_id, []).append(row)
    if not sessions:
        raise ConfigError(f"--trace {path}: the file has no rows; give an agentkv-trace-v1 file")
    return sessions


def trace_workload(
    path: Path,
    counter: PromptCounter,
    fill: FillText,
    *,
    seed: int,
    num_sessions: int,
    max_context_tokens: int,
    max_turns: int,
) -> Workload:
    """A workload from `num_sessions` seeded sessions of the trace, up to `max_turns` turns each."""
    sessions = read_trace(path)
    chosen = _choose(sessions, seed=seed, num_sessions=num_sessions)
    left_out = sum(row.traj != MAIN for name in chosen for row in sessions[name])
    rows = {name: _first_turns(sessions[name], max_turns) for name in chosen}
    longest = max(row.input_tokens for kept in rows.values() for _, row in kept)
    # The template's own tokens do not shrink with the counts.
    room = max_context_tokens - 2 * TEMPLATE_TOKENS * max_turns
    scale = min(1.0, room / longest)
    planned = tuple(
        _SessionPlanner(name, scale, counter, fill).plan(kept, max_context_tokens)
        for name, kept in rows.items()
    )
    missing = sum(row.pause_s() is None for kept in rows.values() for _, row in kept[:-1])
    notes = {
        "token_scale": scale,
        "longest_recorded_prompt_tokens": longest,
        "longest_scaled_prompt_tokens": round(scale * longest),
        "max_context_tokens": max_context_tokens,
        "max_turns_per_session": max_turns,
        "trace_sessions": len(sessions),
        "sub_agent_turns_left_out": left_out,
        "waits_missing_taken_as_zero": missing,
    }
    statement = _statement(path, len(chosen), notes)
    return Workload(source=str(path), sessions=planned, notes={"statement": statement, **notes})


def _statement(path: Path, num_sessions: int, notes: dict[str, Any]) -> str:
    left_out = notes["sub_agent_turns_left_out"]
    return (
        f"{num_sessions} of {notes['trace_sessions']} sessions of {path.name}, the first"
        f" {notes['max_turns_per_session']} turns of each; token counts x"
        f" {notes['token_scale']:.4f}"
        f" (longest prompt {notes['longest_recorded_prompt_tokens']:,} ->"
        f" {notes['longest_scaled_prompt_tokens']:,} tokens), text filled in; waits not scaled"
        + (f"; {left_out} turns of sub-agents left out" if left_out else "")
        + "."
    )


@dataclass(slots=True)
class _SessionPlanner:
    """Builds the prompts of one session row by row; made anew for every session."""

    name: str
    scale: float
    counter: PromptCounter
    fill: FillText
    prompts: dict[int, tuple[Message, ...]] = field(default_factory=dict)
    rows: dict[int, TraceRow] = field(default_factory=dict)

    def plan(self, rows: Sequence[tuple[int, TraceRow]], max_context_tokens: int) -> PlannedSession:
        """The turns whose prompts fit; a session ends before the first that does not."""
        turns: list[PlannedTurn] = []
        for number, row in rows:
            messages = self._messages(number, row)
            prompt_tokens = len(self.counter.ids(messages))
            if prompt_tokens > max_context_tokens and turns:
                break
            known = self.counter.known(messages, self.prompts.values())
            turns.append(_planned_turn(row, messages, prompt_tokens, known))
            self.prompts[number] = messages
            self.rows[number] = row
        return PlannedSession(session_id=self.name, turns=tuple(turns))

    def _messages(self, number: int, row: TraceRow) -> tuple[Message, ...]:
        source = self._source(row)
        if source is None:
            shared = self._shared(row)
            rest = row.input_tokens - (row.shared_prefix_tokens if shared else 0)
            return (*shared, self._message("user", rest, f"{number}/user"))
        base = self.prompts[source]
        kept_share = row.prefix_tokens / max(self.rows[source].input_tokens, 1)
        if kept_share < APPENDED_SHARE:
            kept = self._cut(base, round(kept_share * len(self.counter.ids(base))))
            added = row.input_tokens - row.prefix_tokens
            return (*kept, self._message("user", added, f"{number}/user"))
        answer = self._message("assistant", self.rows[source].output_tokens, f"{source}/answer")
        new = row.new_input_tokens
        added = row.input_tokens - row.prefix_tokens if new is None else new
        return (*base, answer, self._message("user", added, f"{number}/user"))

    def _source(self, row: TraceRow) -> int | None:
        """The row whose prompt this one begins with, if it was played."""
        if row.prefix_row is not None:
            return row.prefix_row if row.prefix_row in self.prompts else None
        by_turn = {earlier.turn: number for number, earlier in self.rows.items()}
        turn = row.prefix_turn if row.prefix_turn is not None else row.turn - 1
        return by_turn.get(turn)

    def _shared(self, row: TraceRow) -> tuple[Message, ...]:
        if not row.shared_prefix_tokens:
            return ()
        content = self.fill.cut(self._scaled(row.shared_prefix_tokens), "shared prefix")
        return ({"role": "system", "content": content},)

    def _message(self, role: str, recorded_tokens: int, key: str) -> Message:
        content = self.fill.cut(self._scaled(recorded_tokens), f"{self.name}/{key}")
        return {"role": role, "content": content}

    def _cut(self, messages: tuple[Message, ...], num_tokens: int) -> tuple[Message, ...]:
        kept: list[Message] = []
        left = num_tokens
        for message in messages:
            size = len(self.counter.ids((message,)))
            if size > left:
                if left > MIN_MESSAGE_TOKENS:
                    kept.append({**message, "content": self.fill.head(message["content"], left)})
                break
            kept.append(message)
            left -= size
        return tuple(kept)

    def _scaled(self, tokens: int) -> int:
        return max(MIN_MESSAGE_TOKENS, round(tokens * self.scale))


def _planned_turn(
    row: TraceRow, messages: tuple[Message, ...], prompt_tokens: int, known_tokens: int
) -> PlannedTurn:
    wait_s = row.pause_s() or 0.0
    tool = row.tools[0] if row.tools else None
    timeouts = [call.timeout_s for call in row.tools or () if call.timeout_s is not None]
    return PlannedTurn(
        messages=messages,
        prompt_tokens=prompt_tokens,
        known_tokens=known_tokens,
        wait_s=wait_s,
        recorded_wait_s=wait_s,
        tool=tool.name if tool else None,
        command=(tool.head or tool.cls) if tool else None,
        timeout_s=max(timeouts, default=None),
    )


def _choose(sessions: dict[str, list[TraceRow]], *, seed: int, num_sessions: int) -> list[str]:
    long_enough = [
        name
        for name, rows in sessions.items()
        if sum(row.traj == MAIN for row in rows) >= MIN_TURNS
    ]
    if not long_enough:
        raise ConfigError(f"--trace: no session has {MIN_TURNS} turns or more; give a longer trace")
    order = random.Random(f"{seed}/trace")
    return order.sample(long_enough, min(num_sessions, len(long_enough)))


def _first_turns(rows: Sequence[TraceRow], max_turns: int) -> list[tuple[int, TraceRow]]:
    """The first main-chain rows with their row numbers in the session (`prefix_row` counts all)."""
    return [(number, row) for number, row in enumerate(rows) if row.traj == MAIN][:max_turns]


def _lines(path: Path) -> Iterator[str]:
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if path.suffix == ".gz" else raw
        yield from text.decode("utf-8").splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--trace {path}: cannot be read ({error}); give a .jsonl or .jsonl.gz file"
        ) from None
