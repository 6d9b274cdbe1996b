"""A disk that stalls holds up only those who need it, and nobody for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tiers.disk_device import Device, stalled, until
from tiers.disk_kit import (
    KiB,
    entries_of,
    entry_of,
    key_of,
    loaded,
    open_store,
)

from agentkv.clock import ManualClock
from agentkv.tiers.disk.space import DirectoryLock


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.mark.parametrize("call", ["store", "load", "delete", "clear"])
def test_questions_do_not_wait_for_a_stalled_device(
    tmp_path: Path, device: Device, clock: ManualClock, call: str
) -> None:
    store = open_store(tmp_path, clock=clock)
    store.store(entries_of(range(5)))
    calls: dict[str, Callable[[], object]] = {
        "store": lambda: store.store(entries_of(range(100, 103))),
        "load": lambda: loaded(store, [0, 1]),
        "delete": lambda: store.delete([key_of(0)]),
        "clear": lambda: store.clear(),
    }
    with stalled(device, calls[call]) as answers:
        assert store.is_available
        store.contains([key_of(1), key_of(99)])
        store.touch([key_of(1)])
        assert store.usage().capacity_bytes == 1200 * KiB
        store.take_failures()
        assert answers == [], "it is stalled indeed"
        clock.advance(11)
        assert not store.is_available, "by now it counts as broken"
        num_calls = device.num_calls
        assert store.store([entry_of(50)]) == [False]
        assert store.load([entry_of(1)]) == [False]
        assert device.num_calls == num_calls, "and nobody else waits for it"
    assert store.is_available
    store.close()


def test_a_store_that_is_closed_while_stalled_keeps_its_lock_until_the_call_ends(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv.tiers.disk.store._CLOSE_WAIT_S", 0.05)
    store = open_store(tmp_path)
    store.store([entry_of(0)])
    folder = next(tmp_path.rglob("engine-0"))
    with stalled(device, lambda: store.store([entry_of(1)])):
        store.close()
        assert not store.is_available
        assert DirectoryLock.take(folder) is None
    lock = DirectoryLock.take(folder)
    assert lock is not None
    lock.close()


def test_the_second_of_two_that_store_a_key_waits_for_the_first(
    tmp_path: Path, device: Device
) -> None:
    """A67: the key is written once, and both are told the truth."""
    store = open_store(tmp_path)
    store.store([entry_of(0)])
    with stalled(device, lambda: store.store([entry_of(1)])) as first:
        num_calls, second = device.num_calls, []
        thread = threading.Thread(target=lambda: second.append(store.store([entry_of(1)])))
        thread.start()
        assert store.contains([key_of(1)]) == [False], "it appears at once and whole"
    thread.join(120)
    assert (first, second) == ([[True]], [[True]])
    assert device.num_calls == num_calls + 1, "one block, one record"
    assert store.usage().num_entries == 2
    store.close()


def test_a_clear_lets_no_store_land_that_had_begun_before(tmp_path: Path, device: Device) -> None:
    store = open_store(tmp_path)
    store.store([entry_of(0)])
    with stalled(device, lambda: store.store([entry_of(1)])) as answers:
        clearing = threading.Thread(target=store.clear)
        clearing.start()
        until(lambda: store.usage().num_entries == 0)
    clearing.join(120)
    assert answers == [[False]]
    assert store.usage().num_entries == 0
    store.close()
    store = open_store(tmp_path)
    assert store.usage().num_entries == 0
    store.close()
