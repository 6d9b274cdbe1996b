"""What was decided, on what view, why, and what it cost in hindsight.

A bounded ring in memory and, if a path is given, one JSON object a line in a file. Records:
`pause` and `redecide` (a decision and its reason), `resume` (what the next turn found), `end`.
A broken disk never blocks a decision: the first failure is logged and turns the file off.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from agentkv.clock import Clock

logger = logging.getLogger(__name__)

Record = dict[str, Any]


class Ledger:
    """Owned by the scheduler thread."""

    def __init__(self, clock: Clock, *, ring_size: int = 4096, path: Path | None = None) -> None:
        self._clock = clock
        self._ring: deque[Record] = deque(maxlen=ring_size)
        self._path = path
        self._file: TextIO | None = self._open() if path is not None else None

    def record(self, kind: str, **fields: Any) -> Record:
        """Adds a record with the wall time in `t`; infinite and NaN numbers become null."""
        record: Record = {"kind": kind, "t": self._clock.wall_s()}
        record.update((key, _finite(value)) for key, value in fields.items())
        self._ring.append(record)
        if self._file is not None:
            self._write(record)
        return record

    def records(self) -> list[Record]:
        """The newest `ring_size` records, oldest first."""
        return list(self._ring)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> TextIO | None:
        assert self._path is not None
        try:
            return self._path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            logger.warning("agentkv: ledger file %s is off: %s", self._path, error)
            return None

    def _write(self, record: Record) -> None:
        assert self._file is not None
        try:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        except OSError as error:
            logger.warning("agentkv: ledger file %s is off: %s", self._path, error)
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return value
