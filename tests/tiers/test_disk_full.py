"""A full disk, and the cap on writes: the tier gets smaller, or refuses."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tiers.disk_kit import (
    KiB,
    entries_of,
    entry_of,
    loaded,
    open_store,
    segment_files,
)

from agentkv.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path: Path) -> None:
    """A real limit of the kernel's, which also answers where nothing can be mounted."""
    code = (
        "import sys; from pathlib import Path; from tiers.disk_kit import *\n"
        "store = open_store(Path(sys.argv[1]))\n"
        "print(store.store([entry_of(1)]), dict(store.take_failures())); store.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300 * KiB, 300 * KiB)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[False] {'disk_full': 1, 'no_room': 1}\n", done.stderr
    assert not segment_files(tmp_path), "no half-made file is left"


def test_without_file_descriptors_there_is_no_growth(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path, segment_bytes=300 * KiB, clock=clock)
    store.store([entry_of(0)])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fds = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fds) + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                fds.append(os.dup(0))
        answers = store.store(entries_of(range(60)))
        assert loaded(store, range(60)) == answers
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fds:
            os.close(fd)
    assert 0 < sum(answers) < 60
    clock.advance(11)
    assert store.take_failures()["io_error"] == 1
    assert all(store.store(entries_of(range(60))))
    store.close()


def test_writes_over_the_cap_are_refused_not_delayed(tmp_path: Path, clock: ManualClock) -> None:
    """A77: a burst, then what the rate allows; loads are free."""
    block_bytes = 16 * KiB
    store = open_store(tmp_path, max_write_bytes_per_s=5 * block_bytes, clock=clock)
    assert store.store(entries_of(range(30))) == [True] * 20 + [False] * 10
    assert store.take_failures() == {"write_rate": 10}
    clock.advance(2)
    assert store.store(entries_of(range(30, 50))) == [True] * 10 + [False] * 10
    clock.advance(1000)
    assert sum(store.store(entries_of(range(50, 90)))) == 20, "no more than a burst is saved up"
    assert all(loaded(store, range(20)))
    store.close()


def test_a_rate_below_a_block_lets_one_through_now_and_then(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(tmp_path, max_write_bytes_per_s=1024, clock=clock)
    assert store.store(entries_of(range(2))) == [True, False]
    clock.advance(16)
    assert store.store(entries_of([1, 2])) == [True, False]
    store.close()


def test_what_was_not_written_does_not_count(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path, max_write_bytes_per_s=25 * 16 * KiB, clock=clock)
    capacity = sum(store.store(entries_of(range(200))))
    assert capacity < 100, "the cap would have allowed a hundred"
    assert sum(store.store(entries_of(range(1000, 1200)))) == min(capacity, 100 - capacity)
    store.close()
