"""Threads that use one tier store without a pause, while one fault after another befalls it.

What: `Subject` is the store of the moment and knows which bytes may come back under each key;
`Crowd` stores, loads and deletes from several threads and compares every byte of what is loaded;
`Mix` brings the faults about, each until the store has noticed it, and heals them again.
Why by counts, not by time: a phase lasts until so many blocks were asked for, on any machine.
"""

from __future__ import annotations

import functools
import hashlib
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from tiers.disk_kit import BLOCK_BYTES, WrongBytesError, key_of, memory

from agentkv.tiers.base import Entry, TierStore

NUM_KEYS = 320
_BATCH = 8
_NUM_THREADS = 4
_PHASE_BLOCKS = 200  # asked for under each fault, and right after it
_MAX_TRIES = 200
_PATIENCE_S = 120.0
_WAIT_S = 0.002


@functools.lru_cache(maxsize=4096)
def content_of(number: int, generation: int) -> bytes:
    """What one write of a key consists of; it says itself which one that is."""
    name = number.to_bytes(8, "little") + generation.to_bytes(8, "little")
    return name + hashlib.shake_128(name).digest(BLOCK_BYTES - len(name))


class Subject:
    """The store under test, and what may come back from it. Thread-safe.

    Each write of a key has a generation of its own. A load may bring the whole of any one; where
    deletes are final, none that was written before a delete that had ended when the load began.
    """

    def __init__(
        self, opening: Callable[[], AbstractContextManager[TierStore]], *, is_delete_final: bool
    ) -> None:
        self.reasons: Counter[str] = Counter()
        self._opening = opening
        self._is_delete_final = is_delete_final
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._store = self._opened.enter_context(opening())
        self._next = 1
        self._writing: dict[int, set[int]] = defaultdict(set)
        self._floors: Counter[int] = Counter()

    @property
    def store(self) -> TierStore:
        return self._store

    def reopen(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Closes the store, whoever is using it, and opens it again where it was.

        A record on a damaged disk may be an old one, so what was deleted may be back then.
        """
        self._opened.close()
        self.count_reasons()
        meanwhile()
        store = self._opened.enter_context(self._opening())
        with self._lock:
            self._store = store
            self._floors.clear()

    def close(self) -> None:
        self._opened.close()
        self.count_reasons()

    def count_reasons(self) -> Counter[str]:
        """What the store has counted as having gone wrong, since the start."""
        self.reasons.update(self._store.take_failures())
        return self.reasons

    def write(self, numbers: Sequence[int], rows: Sequence[memoryview]) -> list[bool]:
        """Stores new generations of these keys, unless they are there."""
        with self._lock:
            store, generation = self._store, self._next
            self._next += 1
            for number in numbers:
                self._writing[number].add(generation)
        try:
            for number, row in zip(numbers, rows, strict=True):
                row[:] = content_of(number, generation)
            return store.store(_entries(numbers, rows))
        finally:
            with self._lock:
                for number in numbers:
                    self._writing[number].discard(generation)

    def read(self, numbers: Sequence[int], rows: Sequence[memoryview]) -> list[bool]:
        """Loads these keys; what is said to be loaded must be right."""
        with self._lock:
            store = self._store
            floors = [self._floors[number] for number in numbers]
        for row in rows:
            row[:] = b"\xaa" * BLOCK_BYTES
        answers = store.load(_entries(numbers, rows))
        for number, floor, row, answer in zip(numbers, floors, rows, answers, strict=True):
            if answer:
                _check(number, floor, bytes(row))
        return answers

    def delete(self, numbers: Iterable[int], how: Callable[[TierStore], object]) -> None:
        """Runs what deletes these keys; from then on no load may bring what was there before."""
        numbers = list(numbers)
        with self._lock:
            store = self._store
            # What is being written now may be written after the delete.
            floors = {n: min(self._writing[n], default=self._next) for n in numbers}
        how(store)
        with self._lock:
            if self._is_delete_final and store is self._store:
                self._floors |= Counter(floors)


def _entries(numbers: Sequence[int], rows: Sequence[memoryview]) -> list[Entry]:
    return [Entry(key_of(number), row) for number, row in zip(numbers, rows, strict=True)]


def _check(number: int, floor: int, block: bytes) -> None:
    generation = int.from_bytes(block[8:16], "little")
    if block != content_of(number, generation):
        raise WrongBytesError(f"wrong bytes under key {number}")
    if generation < floor:
        raise WrongBytesError(f"key {number} was deleted: {generation} came back, not {floor}")


class Tally:
    """What became of all blocks, by fault: right, missed, stored, refused. Thread-safe."""

    def __init__(self) -> None:
        self.fault = "no fault"
        self.problems: list[BaseException] = []
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, fault: str, answers: Sequence[bool], yes: str, no: str) -> None:
        with self._lock:
            self._counts[fault, yes] += answers.count(True)
            self._counts[fault, no] += answers.count(False)

    def num(self, *outcomes: str) -> int:
        with self._lock:
            return sum(n for (_, outcome), n in self._counts.items() if outcome in outcomes)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Raises what a thread of the crowd has met, and if it does not come true.

        Patience is counted in waits: a process that was stopped for long has not waited for long.
        """
        for _ in range(int(_PATIENCE_S / _WAIT_S)):
            if is_so():
                return
            if self.problems:
                raise self.problems[0]
            time.sleep(_WAIT_S)
        raise AssertionError(f"{self.fault}: {what}")

    def wait_for(self, num_blocks: int, *outcomes: str) -> None:
        """Until so many more blocks have come to one of these ends."""
        enough = self.num(*outcomes) + num_blocks
        self.wait_until(
            lambda: self.num(*outcomes) >= enough, f"too few blocks are {' or '.join(outcomes)}"
        )

    def lines(self) -> list[str]:
        """A table: a line per fault, and one for all together."""
        outcomes = ("right", "missed", "stored", "refused")
        faults = sorted({fault for fault, _ in self._counts})
        rows = {fault: [self._counts[fault, o] for o in outcomes] for fault in faults}
        rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
        head = f"{'':22}" + "".join(f"{outcome:>12}" for outcome in outcomes)
        return [head] + [f"{f:22}" + "".join(f"{n:12,}" for n in row) for f, row in rows.items()]


class Crowd:
    """As a context: threads that use the store until it ends."""

    def __init__(self, subject: Subject, tally: Tally, seed: int) -> None:
        self._subject = subject
        self._tally = tally
        self._has_ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 100 + i), i % 2 * 64))
            for i in range(_NUM_THREADS)
        ]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
            assert not thread.is_alive(), "it hangs"

    def _run(self, rng: random.Random, offset: int) -> None:
        """With rows at whole pages or beside them: the disk moves the two in different ways."""
        arena = memory(offset + _BATCH * BLOCK_BYTES)[offset:]
        rows = [arena[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(_BATCH)]
        try:
            while not self._has_ended.is_set():
                self._step(rng, rows)
                if not self._subject.store.is_available:
                    self._has_ended.wait(0.001)  # All answers are no, and cost nothing.
        except BaseException as problem:  # To be told by the test's own thread.
            self._tally.problems.append(problem)

    def _step(self, rng: random.Random, rows: list[memoryview]) -> None:
        numbers = rng.sample(range(NUM_KEYS), _BATCH)
        keys = [key_of(number) for number in numbers]
        fault, step = self._tally.fault, rng.random()
        if step < 0.7:
            self._tally.add(fault, self._subject.read(numbers, rows), "right", "missed")
        elif step < 0.9:
            self._tally.add(fault, self._subject.write(numbers, rows), "stored", "refused")
        elif step < 0.96:
            self._subject.delete(numbers[:4], lambda store: store.delete(keys[:4]))
        else:
            self._subject.store.touch(keys)
            self._subject.store.contains(keys)


@dataclass(frozen=True)
class Fault:
    """`inject` is repeated until the store counts one of `reasons`, if there are any."""

    inject: Callable[[], object]
    reasons: Sequence[str] = ()
    heal: Callable[[], object] = lambda: None


class Mix:
    """A store, its crowd and its faults. `after` is done after each fault, healed or not."""

    def __init__(self, subject: Subject, tally: Tally, after: Callable[[], object]) -> None:
        self.subject = subject
        self.tally = tally
        self._after = after
        self._num_phases: Counter[str] = Counter()

    def run(self, faults: Mapping[str, Fault], num_blocks: int, seed: int) -> None:
        """Until each fault was there and so many blocks were loaded right."""
        rng = random.Random(seed)
        try:
            with Crowd(self.subject, self.tally, seed):
                self.tally.wait_for(_PHASE_BLOCKS, "right")
                while not self._num_phases or self.tally.num("right") < num_blocks:
                    for name in rng.sample(list(faults), len(faults)):
                        self._suffer(name, faults[name])
        finally:
            self.subject.close()
        for problem in self.tally.problems:
            raise problem

    def _suffer(self, name: str, fault: Fault) -> None:
        self.tally.fault = name
        self._num_phases[name] += 1
        num_before = self._num_noticed(fault)
        try:
            for _ in range(_MAX_TRIES):
                fault.inject()
                self.tally.wait_for(_PHASE_BLOCKS, "right", "missed")
                if not fault.reasons or self._num_noticed(fault) > num_before:
                    break
            else:
                raise AssertionError(f"{name}: never noticed")
        finally:
            fault.heal()
            self._after()
        self.tally.wait_for(_PHASE_BLOCKS, "right")

    def _num_noticed(self, fault: Fault) -> int:
        reasons = self.subject.count_reasons()
        return sum(reasons[reason] for reason in fault.reasons)

    def report(self) -> str:
        """For a person."""
        name, num_faults = self.subject.store.name, sum(self._num_phases.values())
        noticed = ", ".join(f"{n:,} {reason}" for reason, n in sorted(self.subject.reasons.items()))
        head = f"\n{name}: no block was wrong under {num_faults:,} faults; it counted {noticed}"
        return "\n".join([head, *self.tally.lines()])
