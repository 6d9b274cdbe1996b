"""Several threads at once: every load is right or a miss, and no slot is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiers.disk_kit import (
    BLOCK_BYTES,
    KiB,
    WrongBytesError,
    content_of,
    entries_of,
    entry_of,
    fill,
    key_of,
    memory,
    open_store,
)

from agentkv.tiers.base import Entry
from agentkv.tiers.disk import index as disk_index
from agentkv.tiers.disk.store import DiskStore

NUM_KEYS = 150
SECONDS = 2.0


class Crowd:
    """Threads that use one store at random for a while and remember what went wrong."""

    def __init__(self, store: DiskStore) -> None:
        self.num_loaded = 0
        self.errors: list[BaseException] = []
        self._store = store
        self._contents = [content_of(key_of(n)) for n in range(NUM_KEYS)]

    def run(self, seconds: float, num_threads: int = 6) -> None:
        """Until something goes wrong, or for so long."""
        until_s = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._guarded, args=(random.Random(n), until_s))
            for n in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, rng: random.Random, until_s: float) -> None:
        try:
            entries = [Entry(b"", memory()) for _ in range(8)]
            while time.monotonic() < until_s and not self.errors:
                self._step(rng, [entry.data for entry in entries])
        except BaseException as error:
            self.errors.append(error)

    def _step(self, rng: random.Random, views: list[memoryview]) -> None:
        numbers = rng.sample(range(NUM_KEYS), len(views))
        keys = [key_of(n) for n in numbers]
        entries = [Entry(key, view) for key, view in zip(keys, views, strict=True)]
        step = rng.random()
        if step < 0.4:
            for view, number in zip(views, numbers, strict=True):
                view[:] = self._contents[number]
            self._store.store(entries)
        elif step < 0.8:
            for view in views:
                view[:] = b"\xaa" * BLOCK_BYTES
            for answer, view, number in zip(self._store.load(entries), views, numbers, strict=True):
                if answer and view != self._contents[number]:
                    raise WrongBytesError(f"wrong bytes for {number}")
                self.num_loaded += answer
        elif step < 0.9:
            self._store.delete(keys[:3])
        elif step < 0.995:
            self._store.touch(keys)
            self._store.contains(keys)
        else:
            self._store.clear()


@pytest.mark.parametrize("uses_callers_memory", [True, False])
def test_every_load_is_right_or_a_miss(tmp_path: Path, uses_callers_memory: bool) -> None:
    store = open_store(tmp_path, segment_bytes=300 * KiB, uses_callers_memory=uses_callers_memory)
    crowd = Crowd(store)
    crowd.run(SECONDS)
    for _ in range(30):  # A slow disk, or a machine that stood still.
        if crowd.num_loaded <= 100:
            crowd.run(SECONDS)
    assert crowd.errors == []
    assert crowd.num_loaded > 100
    assert store.take_failures().keys() <= {"no_room"}
    store.clear()
    assert fill(store) == fill(open_store(tmp_path / "fresh", segment_bytes=300 * KiB))
    store.close()


def test_the_crowd_would_notice_a_slot_that_is_reused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without pins and sums, wrong bytes come through."""
    monkeypatch.setattr("agentkv.tiers.disk.records.DataSums.of", lambda *_: 7)
    store = open_store(tmp_path, segment_bytes=300 * KiB)
    monkeypatch.setattr(disk_index.Holding, "pins", property(lambda _: 0, lambda *_: None))
    crowd = Crowd(store)
    crowd.run(120.0)
    assert any(isinstance(error, WrongBytesError) for error in crowd.errors)
    store.close()


def test_many_that_store_the_same_keys_write_each_once(tmp_path: Path) -> None:
    """A67: a barrier lets eight threads store the same keys at once."""
    store = open_store(tmp_path)
    start, answers = threading.Barrier(8), []

    def one() -> None:
        entries = entries_of(range(10))
        start.wait()
        answers.append(store.store(entries))

    _together([one] * 8)
    assert answers == [[True] * 10] * 8
    assert store.usage().num_entries == 10
    assert fill(store) > 10, "no slot was lost"
    store.close()


def test_a_store_that_cannot_grow_finds_the_slots_of_one_that_just_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has made the last segment that fits, and is held up before its slots can be used."""
    store = open_store(tmp_path)
    grow, has_grown = store._slab.grow, threading.Event()

    def slow_grow(note_failure: Callable[[], None]) -> object:
        segment = grow(note_failure)
        has_grown.set()
        time.sleep(0.1)
        return segment

    monkeypatch.setattr(store._slab, "grow", slow_grow)
    answers: list[list[bool]] = []

    def second() -> None:
        has_grown.wait()
        answers.append(store.store(entries_of(range(10, 20))))

    _together([lambda: answers.append(store.store(entries_of(range(10)))), second])
    assert answers == [[True] * 10] * 2
    assert store.take_failures() == {}
    store.close()


def test_a_miss_is_not_remembered(tmp_path: Path) -> None:
    """A67: a key that was looked up too early is found when another thread has stored it."""
    store = open_store(tmp_path)
    assert store.contains([key_of(1)]) == [False]
    assert store.load([entry_of(1)]) == [False]
    _together([lambda: store.store([entry_of(1)])])
    assert store.contains([key_of(1)]) == [True]
    store.close()


def test_stores_that_cross_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    forth, back = entries_of(range(12)), entries_of(reversed(range(12)))

    def one(entries: list[Entry]) -> None:
        for _ in range(100):
            store.store(entries)
            store.delete([entry.key for entry in entries[:6]])

    _together([lambda: one(forth), lambda: one(back)])
    assert all(store.store(forth))
    store.close()


def test_a_store_closed_amid_calls_ends_them_all(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    crowd = Crowd(store)
    running = threading.Thread(target=crowd.run, args=(2.0,))
    running.start()
    time.sleep(0.3)
    store.close()
    running.join()
    assert crowd.errors == []
    again = open_store(tmp_path)
    assert not list(tmp_path.rglob("engine-1"))
    again.close()


def _together(calls: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "it hangs"
