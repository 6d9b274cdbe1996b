"""The pauses of agentkv-trace-v1 files: what a server may know of each, and how long it took.

What: reads the rows of traces and splits them by repository. Why: a pause is judged by a predictor
that has learned from other repositories, and never sees what a server could not. Where: the first
step of `agentkv bench predict`.

A pause of several calls is filed under the one that the predictor expects to take longest, as a
server files it; the recorded wait is of the whole turn. A turn that stops without a tool call waits
for a human.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentkv.errors import ConfigError
from agentkv.predict.place import HUMAN, Place, traced_place

_MAIN = "main"


class _Tool(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str
    cls: str | None = None
    head: str | None = None
    sig: str | None = None
    timeout_s: float | None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    session_id: str
    traj: str = _MAIN
    repo: str | None = None
    stop: str | None = None
    tools: tuple[_Tool, ...] | None = None
    wait_s: float | None = None
    gap_s: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a turn, before it is known how long it takes."""

    place: Place
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """`session` names one chain of turns; `group` is what is never split between two halves."""

    session: str
    group: str
    calls: tuple[Call, ...]
    wait_s: float


def read_pauses(paths: Sequence[Path]) -> list[Pause]:
    """All pauses with a recorded wait, in file order. Raises ConfigError naming the wrong line."""
    return [pause for path in paths for row in _rows(path) if (pause := _pause(row)) is not None]


def split_by_group(
    pauses: Sequence[Pause], seed: int
) -> tuple[list[Pause], list[Pause], tuple[int, int]]:
    """Two halves that share no repository, and how many of them each has."""
    groups = sorted({pause.group for pause in pauses})
    if len(groups) < 2:
        raise ConfigError("--trace is --fit, and there is one repository only: name another trace")
    random.Random(seed).shuffle(groups)
    half = len(groups) // 2
    first = set(groups[:half])
    fit = [pause for pause in pauses if pause.group in first]
    return fit, [p for p in pauses if p.group not in first], (half, len(groups) - half)


def _pause(row: _Row) -> Pause | None:
    wait_s = row.wait_s if row.wait_s is not None else row.gap_s
    if wait_s is None:
        return None
    return Pause(
        session=f"{row.session_id}/{row.traj}",
        group=row.repo or row.session_id,
        calls=_calls(row),
        wait_s=max(wait_s, 0.0),
    )


def _calls(row: _Row) -> tuple[Call, ...]:
    if row.tools:
        return tuple(
            Call(traced_place(tool.name, tool.cls, tool.head, tool.sig), tool.timeout_s)
            for tool in row.tools
        )
    return (Call(Place(HUMAN) if row.stop == "end_turn" else Place(), None),)


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _row(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _row(line: str, where: str) -> _Row:
    try:
        return _Row.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"]) or "line"
        raise ConfigError(
            f"{where}: {field}: {problem['msg']}; each line must be an agentkv-trace-v1 object"
        ) from None
