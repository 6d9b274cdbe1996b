"""What is in which slot: the part of a disk tier that lives in memory.

What: entries in order of use, free slots, and who is reading or writing what.
Why apart: it does no I/O, so its lock is held for microseconds and a question about a key never
waits for a disk. Where: `disk` reserves places here, moves the bytes, then commits or gives up.

A slot belongs to exactly one of: the free heap, an entry, a reservation, a holding that was dropped
while it was pinned. It moves only under the lock.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """A slot of a segment. Sorted, neighbours on the disk are neighbours."""

    segment: int
    slot: int


@dataclass(slots=True, eq=False)
class Holding:
    """An entry. Its slot is not reused while it is pinned."""

    key: bytes
    place: Place
    data_sum: int
    pins: int = 0
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class Reservation:
    """A slot that is being written for a key."""

    key: bytes
    place: Place
    is_cancelled: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class Reserved(NamedTuple):
    """What became of keys that are to be stored."""

    mine: list[Reservation]
    under_way: list[Reservation]
    """Of keys that another call is writing."""
    num_refused: int
    """There is no slot for them: all are pinned or being written."""


class SlotIndex:
    """Thread-safe; no method waits for anything but the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, Holding] = OrderedDict()  # The least recently used first.
        self._reserved: dict[bytes, Reservation] = {}
        self._free: list[Place] = []
        self._gone: set[int] = set()
        self._last_segment = -1
        self._lost: set[bytes] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def has(self, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [key in self._entries for key in keys]

    def watch(self) -> list[bytes]:
        """The keys that are there; from now on `take_lost` tells which have gone."""
        with self._lock:
            if self._lost is None:
                self._lost = set()
            return list(self._entries)

    def take_lost(self) -> set[bytes]:
        """Keys of entries that have gone since the last call; they may be there again by now."""
        with self._lock:
            if not self._lost:
                return set()
            lost, self._lost = self._lost, set()
            return lost

    def touch(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                if key in self._entries:
                    self._entries.move_to_end(key)

    def add_slots(self, segment: int, num_slots: int, held: Collection[int] = ()) -> None:
        """A segment's slots are free but those in `held`."""
        free = [Place(segment, slot) for slot in range(num_slots) if slot not in held]
        with self._lock:
            if segment in self._gone:  # Lost before it came to be known here.
                return
            is_last = segment > self._last_segment
            self._last_segment = max(segment, self._last_segment)
            self._free.extend(free)
            if not is_last:  # Else all are above those that were there, and it still is a heap.
                heapq.heapify(self._free)

    def restore(self, holdings: Iterable[Holding]) -> list[Holding]:
        """Takes in what was found on the disk, oldest first; returns those that newer ones replace.

        Their slots become free.
        """
        replaced = []
        with self._lock:
            for holding in holdings:
                if (older := self._entries.pop(holding.key, None)) is not None:
                    self._drop(older)
                    replaced.append(older)
                self._entries[holding.key] = holding
        return replaced

    # --- writing ---

    def absent(self, keys: Iterable[bytes]) -> list[bytes]:
        """Keys that are neither there nor being written."""
        with self._lock:
            return [k for k in keys if k not in self._entries and k not in self._reserved]

    def reserve(self, keys: Sequence[bytes]) -> Reserved:
        """Slots for keys: free ones first, then those of the least recently used entries.

        Keys that are there count as used. Neighbouring keys get neighbouring slots where there are
        such.
        """
        with self._lock:
            for key in keys:
                if key in self._entries:
                    self._entries.move_to_end(key)
            under_way = [self._reserved[key] for key in keys if key in self._reserved]
            wanted = [k for k in keys if k not in self._entries and k not in self._reserved]
            places = [heapq.heappop(self._free) for _ in range(min(len(wanted), len(self._free)))]
            places += self._evict(len(wanted) - len(places), spared=set(keys))
            pairs = zip(wanted, sorted(places), strict=False)
            mine = [Reservation(key, place) for key, place in pairs]
            self._reserved.update((r.key, r) for r in mine)
            return Reserved(mine, under_way, len(wanted) - len(mine))

    def commit(self, reservation: Reservation, data_sum: int) -> bool:
        """Makes an entry of a reservation; False if its key was removed meanwhile.

        Then the slot is still the caller's, to be erased and given up.
        """
        with self._lock:
            key = reservation.key
            if reservation.is_cancelled:
                return False
            del self._reserved[key]
            self._entries[key] = Holding(key, reservation.place, data_sum)
        reservation.over.set()
        return True

    def give_up(self, reservations: Iterable[Reservation]) -> None:
        """The slots become free; nothing for those that have been committed."""
        with self._lock:
            for reservation in reservations:
                if not reservation.over.is_set():
                    if self._reserved.get(reservation.key) is reservation:
                        del self._reserved[reservation.key]
                    self._release(reservation.place)
                    reservation.over.set()

    # --- reading ---

    def pin(self, keys: Iterable[bytes]) -> list[Holding | None]:
        """Entries whose slots stay as they are until `unpin`; they count as used."""
        with self._lock:
            holdings = [self._entries.get(key) for key in keys]
            for holding in holdings:
                if holding is not None:
                    holding.pins += 1
                    self._entries.move_to_end(holding.key)
            return holdings

    def unpin(self, holdings: Iterable[Holding]) -> None:
        with self._lock:
            for holding in holdings:
                holding.pins -= 1
                if holding.is_dropped and holding.pins == 0:
                    self._release(holding.place)

    # --- dropping ---

    def drop(self, holdings: Iterable[Holding]) -> None:
        """Forgets these very entries; newer ones of the same keys stay."""
        with self._lock:
            for holding in holdings:
                if self._entries.get(holding.key) is holding:
                    del self._entries[holding.key]
                    self._drop(holding)

    def remove(self, keys: Iterable[bytes]) -> tuple[list[Holding], list[Reservation]]:
        """Forgets keys; what was there comes back pinned, for its records are yet to be erased.

        What is being written under one of the keys comes back too, and will not become an entry.
        """
        with self._lock:
            return self._remove(keys)

    def remove_all(self) -> tuple[list[Holding], list[Reservation]]:
        """As `remove` of every key."""
        with self._lock:
            return self._remove([*self._entries, *self._reserved])

    def forget_segment(self, segment: int) -> int:
        """The segment is lost with all that was in it; returns how many entries that were."""
        with self._lock:
            self._gone.add(segment)
            self._free = [place for place in self._free if place.segment != segment]
            heapq.heapify(self._free)
            lost = [h for h in self._entries.values() if h.place.segment == segment]
            for holding in lost:
                del self._entries[holding.key]
                self._drop(holding)
            for key, reservation in list(self._reserved.items()):
                if reservation.place.segment == segment:
                    reservation.is_cancelled = True
                    del self._reserved[key]
            return len(lost)

    def _remove(self, keys: Iterable[bytes]) -> tuple[list[Holding], list[Reservation]]:
        removed, cancelled = [], []
        for key in keys:
            if (reservation := self._reserved.pop(key, None)) is not None:
                reservation.is_cancelled = True
                cancelled.append(reservation)
            if (holding := self._entries.pop(key, None)) is not None:
                holding.pins += 1
                self._drop(holding)
                removed.append(holding)
        return removed, cancelled

    def _evict(self, num_slots: int, spared: Collection[bytes]) -> list[Place]:
        if num_slots <= 0:
            return []
        victims = []
        for holding in self._entries.values():
            if holding.pins == 0 and holding.key not in spared:
                victims.append(holding)
                if len(victims) == num_slots:
                    break
        for holding in victims:
            del self._entries[holding.key]
            self._note_lost(holding)
        return [holding.place for holding in victims]

    def _drop(self, holding: Holding) -> None:
        self._note_lost(holding)
        if holding.pins == 0:
            self._release(holding.place)

    def _note_lost(self, holding: Holding) -> None:
        holding.is_dropped = True
        if self._lost is not None:
            self._lost.add(holding.key)

    def _release(self, place: Place) -> None:
        if place.segment not in self._gone:
            heapq.heappush(self._free, place)
