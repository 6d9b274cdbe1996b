"""Reads traces of three kinds into one form: agentkv-trace-v1, hash traces, kv-cache-tester files.

    .json                             kv-cache-tester: one session, block hashes of 64 tokens
    .jsonl(.gz), rows with hash_ids   Mooncake or Dynamo: requests with block hashes
    .jsonl(.gz), others               agentkv-trace-v1

A row that is wrong stops the start with file, line, what is wrong and how to mend it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from agentkv.errors import ConfigError
from agentkv.sim.hash_chains import HashRow, sessions_of
from agentkv.sim.trace import TraceSession, TraceTurn

MAIN = "main"
_Row = TypeVar("_Row", bound=BaseModel)


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Tool(_Lenient):
    name: str
    head: str | None = None
    cls: str | None = None
    timeout_s: float | None = None


class _V1Row(_Lenient):
    session_id: str
    input_tokens: PositiveInt
    output_tokens: NonNegativeInt
    turn: NonNegativeInt
    src: str = ""
    traj: str = MAIN
    prefix_tokens: NonNegativeInt = 0
    prefix_turn: int | None = None
    prefix_row: int | None = None
    shared_prefix_tokens: NonNegativeInt | None = None
    tools: tuple[_Tool, ...] | None = None
    wait_s: float | None = None
    gap_s: float | None = None
    wait_kind: str | None = None


class _HashTraceRow(_Lenient):
    timestamp: float = 0.0  # milliseconds
    input_length: PositiveInt
    output_length: NonNegativeInt
    hash_ids: tuple[int, ...] = Field(min_length=1)
    session_id: str | None = None
    delay: float | None = None  # Dynamo: milliseconds since the session's last answer


class _Request(_Lenient):
    type: str = "n"
    input_tokens: PositiveInt = Field(alias="in")
    output_tokens: NonNegativeInt = Field(alias="out")
    hash_ids: tuple[int, ...] = ()
    stop: str = ""
    api_time: float = 0.0
    think_time: float | None = None


class _TesterFile(_Lenient):
    id: str
    block_size: PositiveInt
    requests: tuple[dict[str, object], ...] = Field(min_length=1)
    tool_tokens: NonNegativeInt = 0
    system_tokens: NonNegativeInt = 0


def read_traces(paths: Iterable[Path]) -> list[TraceSession]:
    """The sessions of all files, waits and shared prefixes as recorded; no sub-agents' requests.

    Raises ConfigError naming file, line and problem.
    """
    return [session for path in paths for session in _read(path)]


def _read(path: Path) -> list[TraceSession]:
    if path.suffix == ".json":
        return [_tester_session(path)]
    lines = list(_lines(path))
    if not lines:
        raise ConfigError(f"{path}: the file has no rows; give a trace with one request a line")
    if '"hash_ids"' in lines[0][1]:
        rows = [(n, _parse(_HashTraceRow, path, n, line)) for n, line in lines]
        return sessions_of(_hash_row(row) for _, row in rows)
    return _v1_sessions(path, lines)


# --- agentkv-trace-v1 ---


def _v1_sessions(path: Path, lines: list[tuple[int, str]]) -> list[TraceSession]:
    grouped: dict[str, list[tuple[int, _V1Row]]] = {}
    for number, line in lines:
        row = _parse(_V1Row, path, number, line)
        grouped.setdefault(row.session_id, []).append((number, row))
    sessions = (_v1_session(path, name, rows) for name, rows in grouped.items())
    return [session for session in sessions if session is not None]


def _v1_session(path: Path, name: str, rows: list[tuple[int, _V1Row]]) -> TraceSession | None:
    """`prefix_row` counts all rows of the session, `prefix_turn` those of the main chain."""
    by_row: dict[int, int] = {}
    by_turn: dict[int, int] = {}
    turns: list[TraceTurn] = []
    for place, (number, row) in enumerate(rows):
        if row.traj != MAIN:
            continue
        if row.prefix_row is not None:
            source = by_row.get(row.prefix_row, -1)
        else:
            source = by_turn.get(row.turn - 1 if row.prefix_turn is None else row.prefix_turn, -1)
        if row.prefix_tokens > row.input_tokens:
            raise ConfigError(
                f"{path}, line {number}: prefix_tokens is {row.prefix_tokens}, more than "
                f"input_tokens {row.input_tokens}; a prompt cannot share more than it has"
            )
        by_row[place] = by_turn[row.turn] = len(turns)
        turns.append(_v1_turn(row, source))
    if not turns:
        return None
    first = next(row for _, row in rows if row.traj == MAIN)
    shared = first.shared_prefix_tokens
    if shared is not None:
        shared = min(shared, first.input_tokens)
    return TraceSession(name, tuple(turns), shared_key=first.src, shared_tokens=shared)


def _v1_turn(row: _V1Row, source: int) -> TraceTurn:
    wait_s = row.wait_s if row.wait_s is not None else row.gap_s
    tool = row.tools[0] if row.tools else None
    timeouts = [call.timeout_s for call in row.tools or () if call.timeout_s is not None]
    name = tool.name if tool is not None else None
    if name is None and row.wait_kind == "human":
        name = "human"
    return TraceTurn(
        prompt_tokens=row.input_tokens,
        output_tokens=max(1, row.output_tokens),
        prefix_turn=source,
        prefix_tokens=row.prefix_tokens if source >= 0 else 0,
        wait_s=None if wait_s is None else max(0.0, wait_s),
        tool=name,
        command=(tool.head or tool.cls) if tool is not None else None,
        timeout_s=max(timeouts, default=None),
    )


# --- traces of block hashes ---


def _hash_row(row: _HashTraceRow) -> HashRow:
    return HashRow(
        session=row.session_id,
        at_s=row.timestamp / 1e3,
        delay_s=None if row.delay is None else max(0.0, row.delay / 1e3),
        prompt_tokens=row.input_length,
        output_tokens=max(1, row.output_length),
        hashes=row.hash_ids,
    )


def _tester_session(path: Path) -> TraceSession:
    """One session of kv-cache-tester. Its `think_time` holds a hidden request: see the code."""
    try:
        text = path.read_bytes()
        file = _TesterFile.model_validate_json(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {_problem(error)}; give a kv-cache-tester file") from None
    requests: list[_Request] = []
    for number, raw in enumerate(file.requests):
        if "in" in raw:  # Others are sub-agents.
            requests.append(_parse_request(path, number, raw))
    rows = []
    for i, request in enumerate(requests):
        rows.append(
            HashRow(
                session=file.id,
                at_s=float(i),
                delay_s=_wait_before(requests, i),
                prompt_tokens=request.input_tokens,
                output_tokens=max(1, request.output_tokens),
                hashes=request.hash_ids or (-1 - i,),
            )
        )
    (session,) = sessions_of(rows, tokens_per_hash=file.block_size)
    first = session.turns[0].prompt_tokens
    shared = min(file.tool_tokens + file.system_tokens, first)
    return TraceSession(session.name, session.turns, "kv-cache-tester", shared)


def _wait_before(requests: list[_Request], i: int) -> float | None:
    """The wait between the request before and this one.

    The recorder sent each turn twice; one copy's time is part of `think_time`, that of this request
    in 'n' rows, of the one before in 's' rows.
    """
    if i == 0 or requests[i].think_time is None:
        return None
    request = requests[i]
    hidden_s = requests[i - 1].api_time if request.type == "s" else request.api_time
    return max(0.0, (request.think_time or 0.0) - hidden_s)


def _parse_request(path: Path, number: int, raw: dict[str, object]) -> _Request:
    try:
        return _Request.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(
            f"{path}, request {number}: {_problem(error)}; each request needs in, out and hash_ids"
        ) from None


# --- lines ---


def _parse(kind: type[_Row], path: Path, number: int, line: str) -> _Row:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        form = "a Mooncake row" if kind is _HashTraceRow else "an agentkv-trace-v1 object"
        raise ConfigError(
            f"{path}, line {number}: {_problem(error)}; each line must be {form}: mend or drop it"
        ) from None


def _problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"]) or "row"
    return f"{place}: {problem['msg']}"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); give a .jsonl, .jsonl.gz or .json trace"
        ) from None
    return ((n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip())
