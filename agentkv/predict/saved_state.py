"""What a predictor has learned, in a form that outlives a restart.

What: `SavedState`, the numbers and their checks, and reading and writing them as one JSON file.
Why: a server must not unlearn its tools with every restart, and must start whatever the file holds.
Where: `HierarchicalWaitPredictor.dump` and `load`. Sessions are not saved: their names may be any
object, and who comes back is soon known again.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentkv.predict.contexts import KIND_TO_LEAN
from agentkv.predict.histogram import NUM_BINS
from agentkv.predict.levels import Key, Level, Levels

logger = logging.getLogger(__name__)

_DIGITS = 5
_TOLERANCE = 0.01

Name = Annotated[str, Field(max_length=256)]
Count = Annotated[float, Field(ge=0, le=1e9)]
Bin = Annotated[int, Field(ge=0, lt=NUM_BINS)]


class SavedLevel(BaseModel):
    """A level of `levels`; `mass` has the bins that are not empty."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    kind: Name
    names: tuple[Name, ...] = Field(max_length=8)
    weight: Count
    num_observed: Annotated[int, Field(ge=0)]
    mass: dict[Bin, Count]

    @model_validator(mode="after")
    def _is_whole(self) -> SavedLevel:
        if self.kind not in KIND_TO_LEAN:
            raise ValueError(f"unknown kind {self.kind!r}")
        if abs(sum(self.mass.values()) - self.weight) > _TOLERANCE * (1 + self.weight):
            raise ValueError("the mass does not sum to the weight")
        return self


class SavedState(BaseModel):
    """All that is saved. Another version, or another scale of bins, is not read."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    format: Literal["agentkv-predictor"] = "agentkv-predictor"
    version: Literal[1] = 1
    num_bins: int
    num_observed: Annotated[int, Field(ge=0)]
    levels: list[SavedLevel]
    weights: list[tuple[Name, Name, float, float]]
    gains: list[tuple[Name, float, float]]
    endings: tuple[Count, Count, Count, Count]
    stated: tuple[Count, Count]

    @model_validator(mode="after")
    def _fits(self) -> SavedState:
        if self.num_bins != NUM_BINS:
            raise ValueError(f"{self.num_bins} bins, not {NUM_BINS}")
        return self


def saved_levels(levels: Levels) -> Iterator[SavedLevel]:
    for key, level in levels.items():
        filled = np.flatnonzero(level.mass > 10**-_DIGITS).tolist()
        yield SavedLevel(
            kind=key.kind,
            names=key.names,
            weight=level.weight,
            num_observed=level.num_observed,
            mass={i: round(float(level.mass[i]), _DIGITS) for i in filled},
        )


def put_levels(saved: list[SavedLevel], levels: Levels) -> None:
    """Puts saved levels in place of those there are."""
    levels.clear()
    for each in saved:
        mass = np.zeros(NUM_BINS)
        for i, value in each.mass.items():
            mass[i] = value
        level = Level(mass, each.weight, each.num_observed)
        levels.put(Key(each.kind, each.names), level)


def checked(state: object) -> SavedState | None:
    """The state, or None with a line in the log where it is foreign, old or damaged."""
    try:
        return SavedState.model_validate(state)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "state"
        logger.warning("saved waits are not used: %s: %s", where, problem["msg"])
        return None


def write_state(path: Path, state: dict[str, Any]) -> bool:
    """Puts the state in place of the file at once; False with a line in the log if it cannot."""
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(state, file, separators=(",", ":"))
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("what was learned of waits is not saved: %s", error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True


def read_state(path: Path) -> object:
    """What the file holds, for `load`; None if there is no file, or with a line in the log."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("saved waits are not used: %s: %s", path, error)
        return None
