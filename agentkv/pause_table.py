"""What is known of the open pauses, in columns: thousands are ranked and summed up at once.

    decided, told more, given up, taken back ─► its row is written anew
    someone lacks blocks ─► `RankedQueue`: sorted in columns, looked at one by one

Why: the scheduler's time is dear. A walk in Python over ten thousand pauses takes tens of
milliseconds, this one or two. Kept by `pause_book`, which sees to it that rows are up to date.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agentkv.policy.ranking import Candidate
from agentkv.policy.ranking_many import FIELDS, Column, Rows, row_of
from agentkv.sessions import OpenPause, Pause, Session, SessionKey

Key: TypeAlias = tuple[float, ...]
Entry: TypeAlias = tuple[Key, int, OpenPause]

_OWN = [("order", np.int64), ("is_kept", np.bool_), ("context_tokens", np.int64)]
_ROW = np.dtype([*_OWN, *FIELDS])


class RankedQueue:
    """Pauses in the order of their keys, the lowest first; more may be put in between.

    Those with equal keys stay in the order in which they came.
    """

    def __init__(
        self, pauses: Sequence[OpenPause], order: npt.NDArray[np.int64], columns: Sequence[Column]
    ) -> None:
        """`columns`: the parts of the keys; `order` tells who came first. A place for each."""
        self._pauses = pauses
        self._places: list[int] = _sorting([*columns, order]).tolist()
        self._columns = columns
        self._order = order
        self._next = 0
        self._again: list[Entry] = []

    def __iter__(self) -> Iterator[OpenPause]:
        """In order; takes none."""
        again = iter(self._again)
        waiting = next(again, None)
        for i in range(self._next, len(self._places)):
            while waiting is not None and waiting < self._entry(i):
                yield waiting[2]
                waiting = next(again, None)
            yield self._pauses[self._places[i]]
        while waiting is not None:
            yield waiting[2]
            waiting = next(again, None)

    def first(self) -> Entry | None:
        """The first one, which stays; None if there is none."""
        rest = self._entry(self._next) if self._next < len(self._places) else None
        if self._again and (rest is None or self._again[0] < rest):
            return self._again[0]
        return rest

    def pop(self) -> Entry | None:
        """Takes the first one; None if there is none."""
        first = self.first()
        if self._again and self._again[0] is first:
            del self._again[0]
        elif first is not None:
            self._next += 1
        return first

    def put(self, entry: Entry) -> None:
        """A new one, or one that was taken, with the key that it has now."""
        bisect.insort(self._again, entry)

    def put_all(self, others: RankedQueue) -> None:
        """New ones; of `others` nothing is left."""
        for entry in iter(others.pop, None):
            self.put(entry)

    def _entry(self, i: int) -> Entry:
        place = self._places[i]
        key = tuple(float(column[place]) for column in self._columns)
        return key, int(self._order[place]), self._pauses[place]


def _sorting(columns: Sequence[Column | npt.NDArray[np.int64]]) -> npt.NDArray[np.intp]:
    """As `np.lexsort`, the first column first; in a fraction of the time if one tells all apart."""
    for column in columns:
        if len(column) and column.min() < column.max():
            sorting = np.argsort(column)
            values = column[sorting]
            if (values[1:] > values[:-1]).all():
                return sorting
            break
    by_all: npt.NDArray[np.intp] = np.lexsort(columns[::-1])
    return by_all


NO_PAUSES = RankedQueue([], np.zeros(0, np.int64), [np.zeros(0)])


class PauseTable:
    """Owned by the pause book. One row for each open pause that was decided."""

    def __init__(self) -> None:
        self._rows: Rows = np.zeros(64, _ROW)
        self._pauses: list[OpenPause] = []
        self._places: dict[SessionKey, int] = {}
        self._num_placed = 0

    def put(self, session: Session, pause: Pause) -> None:
        """Writes the row of an open pause: a new one, or anew."""
        place = self._places.get(session.key)
        if place is None:
            place = self._places[session.key] = len(self._pauses)
            self._pauses.append((session, pause))
            if place == len(self._rows):
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._rows[place]["order"] = self._take_number()
        order = self._rows[place]["order"]
        fields = row_of(candidate_of(pause))
        self._rows[place] = (order, not pause.is_given_up, pause.context_tokens, *fields)

    def move(self, key: SessionKey, *, is_kept: bool) -> None:
        """Its blocks were given up, or are back: it is the last that came there."""
        place = self._places.get(key)
        if place is not None:
            self._rows[place]["is_kept"] = is_kept
            self._rows[place]["order"] = self._take_number()

    def drop(self, key: SessionKey) -> None:
        place = self._places.pop(key, None)
        if place is None:
            return
        last = self._pauses.pop()
        if place < len(self._pauses):  # The last row takes its place.
            self._pauses[place] = last
            self._places[last[0].key] = place
            self._rows[place] = self._rows[len(self._pauses)]

    @property
    def newest(self) -> int:
        """The number of the last that came, to where its blocks are."""
        return self._num_placed

    def rows(self) -> Rows:
        """All of them; to be read at once, and read only."""
        return self._rows[: len(self._pauses)]

    def kept(self, *, since: int = -1) -> npt.NDArray[np.intp]:
        """Places of the pauses whose blocks are in the pool, of those that came after a number."""
        rows = self.rows()
        return np.flatnonzero(rows["is_kept"] & (rows["order"] > since))

    def sorted(self, places: npt.NDArray[np.intp], columns: Sequence[Column]) -> RankedQueue:
        """The pauses at these places by keys with these parts."""
        order: npt.NDArray[np.int64] = self._rows["order"][places]
        return RankedQueue([self._pauses[i] for i in places.tolist()], order, columns)

    def clear(self) -> None:
        self._pauses.clear()
        self._places.clear()

    def _take_number(self) -> int:
        self._num_placed += 1
        return self._num_placed


def candidate_of(pause: Pause) -> Candidate:
    """What is known of an open pause, for the ranking."""
    decision = pause.decision
    assert decision is not None, "a pause is decided when it is opened"
    return Candidate(
        decision=decision,
        started_s=pause.started_s,
        decided_s=pause.decided_s,
        returns_at_s=pause.returns_at_s,
        is_tool_done=pause.tool_done_s is not None,
    )
