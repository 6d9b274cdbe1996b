"""What was decided, on what view, why, and what it cost in hindsight.

A bounded ring in memory and, if a path is given, one JSON object a line in a file. Records:
`pause` and `redecide` (a decision and its reason), `park` (a copy below DRAM), `resume` (what the
next turn found, and the regret), `end`. What the regret needs is kept apart until the turn is back,
in `choices`: a long pause outlives the ring. A broken disk never blocks a decision: the first
failure is logged and turns the file off.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from agentkv.clock import Clock
from agentkv.regret import ChoiceBook

logger = logging.getLogger(__name__)

Record = dict[str, Any]


class Ledger:
    """Owned by the scheduler thread."""

    def __init__(self, clock: Clock, *, ring_size: int = 4096, path: Path | None = None) -> None:
        self._clock = clock
        self.choices = ChoiceBook()
        self._ring: deque[Record] = deque(maxlen=ring_size)
        self._path = path
        self._file: TextIO | None = self._open() if path is not None else None
        # Called with each new record.
        self.on_record: Callable[[Record], object] | None = None

    def record(self, kind: str, **fields: Any) -> Record:
        """Adds a record with the wall time in `t`; infinite and NaN numbers become null."""
        record: Record = {"kind": kind, "t": self._clock.wall_s(), **fields}
        for key, value in fields.items():
            if isinstance(value, (float, dict)):
                record[key] = _finite(value)
        self._ring.append(record)
        if self._file is not None:
            self._write(record)
        if self.on_record is not None:
            self.on_record(record)
        return record

    def records(self) -> list[Record]:
        """The newest `ring_size` records, oldest first."""
        return list(self._ring)

    def of_session(self, scope: str, name: str, *, limit: int) -> list[Record]:
        """The newest records of one tenant's session, oldest first. Looks through the whole ring.

        A record without a scope counts by the pause it names.
        """
        found: list[Record] = []
        pauses: set[Any] = set()
        for record in self._ring:
            if record.get("session_id") != name:
                continue
            if record.get("scope") == scope:
                pauses.add(record.get("pause_id"))
                found.append(record)
            elif "scope" not in record and record.get("pause_id") in pauses:
                found.append(record)
        return found[-limit:]

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
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return value
