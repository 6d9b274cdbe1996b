"""A disk that fails costs entries, never an exception or a wrong byte."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiers.disk_device import Device
from tiers.disk_kit import (
    KiB,
    content_of,
    entries_of,
    entry_of,
    fill,
    key_of,
    loaded,
    memory,
    open_store,
    segment_files,
)

from agentkv.clock import ManualClock
from agentkv.tiers.base import Entry
from agentkv.tiers.disk import io as disk_io
from agentkv.tiers.disk.store import DiskStore


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_failing_writes_are_misses_and_reads_go_on(
    tmp_path: Path, device: Device, clock: ManualClock, error: int
) -> None:
    store = open_store(tmp_path, clock=clock)
    store.store(entries_of(range(5)))
    device.failing["pwritev"] = error
    assert store.store(entries_of(range(4, 8))) == [True, False, False, False]
    reason = "disk_full" if error in (errno.ENOSPC, errno.EDQUOT) else "io_error"
    assert store.take_failures() == {reason: 3}
    assert loaded(store, range(8)) == [True] * 5 + [False] * 3
    device.failing.clear()
    assert all(store.store(entries_of(range(8))))
    assert all(loaded(store, range(8)))
    store.close()


def test_a_record_that_cannot_be_written_is_no_entry(tmp_path: Path, device: Device) -> None:
    """Only the write of the table's page fails: it is the one of a single page."""
    store = open_store(tmp_path)
    store.store(entries_of(range(5)))
    real = disk_io.pwritev
    broken = True

    def pwritev(fd: int, views: list[memoryview], offset: int) -> int:
        if broken and len(views) == 1 and len(views[0]) == 4096:
            raise OSError(errno.EIO, "injected")
        return real(fd, views, offset)

    disk_io.pwritev = pwritev  # The fixture restores it.
    assert store.store(entries_of(range(5, 8))) == [False] * 3
    assert store.take_failures() == {"io_error": 3}
    broken = False
    assert store.store([entry_of(100)]) == [True]
    store.close()
    store = open_store(tmp_path)
    assert loaded(store, [*range(8), 100]) == [True] * 5 + [False] * 3 + [True]
    assert store.take_failures() == {}
    store.close()


def test_what_a_failed_write_evicted_does_not_come_back_when_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    capacity = fill(store)
    store.touch([key_of(0)])  # The next to go is not the one in the first slot.
    real = disk_io.pwritev

    def pwritev(fd: int, views: list[memoryview], offset: int) -> int:
        if len(views[0]) > 4096:
            raise OSError(errno.EIO, "injected")
        return real(fd, views, offset)

    monkeypatch.setattr(disk_io, "pwritev", pwritev)
    assert store.store([entry_of(1000)]) == [False], "key 1 went for it"
    monkeypatch.undo()
    store.delete([key_of(0)])
    assert store.store([entry_of(1)]) == [True], "in the slot of key 0"
    store.delete([key_of(1)])
    store.close()
    store = open_store(tmp_path)
    assert store.contains([key_of(n) for n in range(capacity)]) == [False] * 2 + [True] * (
        capacity - 2
    )
    assert store.contains([key_of(1000)]) == [False]
    store.close()


def test_a_bad_sector_costs_one_entry_not_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(10)))
    (path,) = segment_files(tmp_path)
    bad = path.read_bytes().index(content_of(key_of(4)))
    real = disk_io.preadv

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        if offset <= bad < offset + sum(map(len, views)):
            raise OSError(errno.EIO, "injected")
        return real(fd, views, offset)

    monkeypatch.setattr(disk_io, "preadv", preadv)
    assert loaded(store, range(10)) == [n != 4 for n in range(10)]
    assert store.take_failures() == {"io_error": 1}
    store.close()


def test_short_reads_and_writes_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    real = {"preadv": disk_io.preadv, "pwritev": disk_io.pwritev}
    for name, call in real.items():
        monkeypatch.setattr(disk_io, name, lambda fd, v, at, call=call: call(fd, [v[0][:4096]], at))
    assert all(store.store(entries_of(range(5))))
    assert all(loaded(store, range(5)))
    for name, call in real.items():
        monkeypatch.setattr(disk_io, name, call)
    assert all(loaded(store, range(5)))
    store.close()


def test_a_broken_device_is_left_alone_for_longer_and_longer(
    tmp_path: Path, device: Device, clock: ManualClock
) -> None:
    """A75: after a few failures a call costs nothing until the pause is over."""
    store = open_store(tmp_path, clock=clock)
    fill(store)
    device.failing = dict.fromkeys(("preadv", "pwritev"), errno.EIO)
    for number in range(3):
        assert store.is_available
        assert loaded(store, [number]) == [False]
    pauses_s = []
    for number in range(3, 11):
        assert not store.is_available
        assert store.contains([key_of(20)]) == [False], "it has nothing while it is broken"
        num_calls, began_s = device.num_calls, clock.monotonic_s()
        assert loaded(store, [20]) == [False]
        assert device.num_calls == num_calls
        while not store.is_available:
            clock.advance(0.5)
        pauses_s.append(clock.monotonic_s() - began_s)
        assert loaded(store, [number]) == [False], "one try, and the next pause begins"
    assert pauses_s == [1, 2, 4, 8, 16, 32, 60, 60]
    device.failing.clear()
    clock.advance(60)
    assert store.take_failures() == {"io_error": 11, "unavailable": 8}
    assert loaded(store, [20, 21]) == [True, True], "it comes back by itself"
    store.close()


def test_a_disk_that_takes_nothing_and_has_nothing_is_not_available(
    tmp_path: Path, device: Device, clock: ManualClock
) -> None:
    store = open_store(tmp_path, clock=clock)
    store.store([entry_of(0)])
    device.failing["pwritev"] = errno.EROFS
    for number in range(1, 4):
        store.store([entry_of(number)])
    num_calls = device.num_calls
    assert store.store([entry_of(5)]) == [False]
    assert device.num_calls == num_calls
    assert store.is_available
    assert loaded(store, [0]) == [True], "what is there can be read"
    store.delete([key_of(0)])
    assert not store.is_available
    clock.advance(1)
    assert store.is_available
    store.close()


def test_deletions_that_could_not_be_written_are_told(tmp_path: Path, device: Device) -> None:
    store = open_store(tmp_path)
    store.store(entries_of(range(3)))
    device.failing["pwritev"] = errno.EIO
    assert store.delete([key_of(0), key_of(1)]) == 2
    assert store.take_failures() == {"not_erased": 2}
    assert loaded(store, range(3)) == [False, False, True]
    device.failing.clear()
    store.store([entry_of(9)])
    store.close()
    store = open_store(tmp_path)
    assert loaded(store, [0, 1, 2, 9]) == [False, False, True, True], "written with the next record"
    store.close()


def test_a_clear_that_cannot_be_written_deletes_the_file(tmp_path: Path, device: Device) -> None:
    store = open_store(tmp_path)
    fill(store)
    device.failing["pwritev"] = errno.EIO
    store.clear()
    assert not segment_files(tmp_path)
    device.failing.clear()
    assert all(store.store(entries_of(range(5))))
    assert all(loaded(store, range(5)))
    store.close()


def test_a45_a_file_system_without_direct_io_will_do_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fast path is tried once, at the start."""
    real, refused = os.open, []

    def refuse(path: object, flags: int, *rest: int, **names: object) -> int:
        if flags & os.O_DIRECT:
            refused.append(path)
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(path, flags, *rest, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    store = open_store(tmp_path)
    assert all(store.store(entries_of(range(5))))
    assert all(loaded(store, range(5)))
    assert len(refused) == 1
    assert [line for line in caplog.messages if "no direct I/O" in line] == [
        f"agentkv: no direct I/O on {segment_files(tmp_path)[0].parent}; it goes by the page cache"
    ]
    store.close()


def test_without_threads_the_caller_does_all_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A54: what cannot be had at run time makes things slower, not wrong."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    store = open_store(tmp_path)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    monkeypatch.setattr("agentkv.tiers.disk.transfer._MAX_RUN_BYTES", 16 * KiB)
    assert all(store.store(entries_of(range(20))))
    assert all(loaded(store, range(20)))
    store.close()


def test_damage_is_noticed_only_since_sums_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without the check the flipped byte comes through."""
    store = open_store(tmp_path)
    store.store([entry_of(1)])
    (path,) = segment_files(tmp_path)
    raw = path.read_bytes()
    at = raw.index(content_of(key_of(1)))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    entry = Entry(key_of(1), memory())
    _trust_all(store, monkeypatch)
    assert store.load([entry]) == [True]
    assert entry.data != content_of(key_of(1))
    monkeypatch.undo()
    assert store.load([entry]) == [False]
    store.close()


def _trust_all(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (holding,) = store._index.pin([key_of(1)])
    assert holding is not None
    store._index.unpin([holding])
    monkeypatch.setattr("agentkv.tiers.disk.records.DataSums.of", lambda *_: holding.data_sum)
