"""A crash at any point leaves each entry bit by bit as it was, or missing.

`AGENTKV_KILLS` sets how often the process is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiers.disk_kit import (
    WrongBytesError,
    disk_bytes,
    entries_of,
    fill,
    key_of,
    loaded,
    open_store,
    segment_files,
)
from tiers.disk_victim import NUM_KEYS, SIZE_BYTES

from agentkv.tiers.disk.records import DataSums
from agentkv.tiers.disk.store import DiskStore

NUM_KILLS = int(os.environ.get("AGENTKV_KILLS", "30"))
CAPACITY = 40


def kill_at_some_moment(path: Path, seed: int) -> None:
    """Starts the victim, lets it work for up to a tenth of a second and kills it."""
    victim = subprocess.Popen(
        [sys.executable, "-m", "tiers.disk_victim", str(path), str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    with victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"begun\n"
        time.sleep(random.Random(seed).random() / 10)
        victim.send_signal(signal.SIGKILL)


def reopen(path: Path) -> DiskStore:
    return open_store(path, size_bytes=SIZE_BYTES, segment_bytes=300_000)


def check_all(path: Path) -> tuple[int, dict[str, int]]:
    """Opens and reads everything; returns how many entries were right, and what went wrong."""
    store = reopen(path)
    try:
        assert disk_bytes(path) - os.lstat(path).st_blocks * 512 <= SIZE_BYTES
        promised = sum(store.contains([key_of(n) for n in range(NUM_KEYS)]))
        assert promised == store.usage().num_entries <= CAPACITY
        num_right = sum(loaded(store, range(NUM_KEYS)))
        failures = dict(store.take_failures())
        assert num_right == store.usage().num_entries, "what is damaged is dropped"
        assert sum(loaded(store, range(NUM_KEYS))) == num_right
        assert not store.take_failures()
    finally:
        store.close()
    return num_right, failures


def test_a_process_killed_at_any_moment_leaves_only_whole_entries(tmp_path: Path) -> None:
    """A65: also while slots are reused, deleted and cleared; nothing piles up."""
    total = 0
    for kill in range(NUM_KILLS):
        kill_at_some_moment(tmp_path, seed=kill)
        num_right, failures = check_all(tmp_path)
        # At worst what two calls were writing, or the old table of a clear that was under way.
        assert failures.keys() <= {"checksum", "damaged_record"}
        assert failures.get("checksum", 0) <= 24
        total += num_right
        names = {item.name for item in tmp_path.rglob("*") if item.is_file()}
        assert {name for name in names if not name.startswith("seg-")} == {"lock", "manifest.json"}
    assert total > NUM_KILLS * CAPACITY // 3, "and most of what was stored is there"


def test_what_was_deleted_before_a_kill_is_not_there_after_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tiers.disk_kit import *\n"
        "store = open_store(Path(sys.argv[1]))\n"
        "store.store(entries_of(range(40))); store.delete([key_of(n) for n in range(20)])\n"
        "os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False)
    store = open_store(tmp_path)
    assert loaded(store, range(40)) == [False] * 20 + [True] * 20
    store.close()


def tear(path: Path, rng: random.Random) -> None:
    """What a power loss may do: pages that were not written, half written, or of before."""
    file = rng.choice(segment_files(path))
    raw = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 6)):
        # Half of the damage goes to header and table, which are small.
        area = min(len(raw), 8192) if rng.random() < 0.5 else len(raw)
        start = rng.randrange(0, area, rng.choice((1, 512, 4096)))
        length = rng.choice((1, 64, 512, 4096, 40_000))
        part = raw[start : start + length]
        how = rng.randrange(4)
        if how == 0:
            part[:] = bytes(len(part))
        elif how == 1:
            part[:] = rng.randbytes(len(part))
        elif how == 2:
            other = rng.randrange(max(1, len(raw) - length))
            part[:] = raw[other : other + len(part)]
        elif part:
            part[rng.randrange(len(part))] ^= 1 << rng.randrange(8)
        raw[start : start + length] = part
    if rng.random() < 0.1:
        del raw[rng.randrange(len(raw)) :]
    file.write_bytes(raw)


def test_torn_files_give_whole_entries_or_none(tmp_path: Path) -> None:
    """A65, A66: random damage, hundreds of times; the store goes on with what is whole."""
    rng = random.Random(11)
    num_right, seen = 0, set()
    for _ in range(300):
        store = reopen(tmp_path)
        store.store(entries_of(rng.sample(range(NUM_KEYS), 20)))
        store.close()
        tear(tmp_path, rng)
        right, failures = check_all(tmp_path)
        num_right += right
        seen |= failures.keys()
    assert seen == {"checksum", "damaged_record", "damaged_segment"}
    assert num_right > 300 * 5


def test_a_kill_and_a_tear_together(tmp_path: Path) -> None:
    rng = random.Random(12)
    for kill in range(max(3, NUM_KILLS // 10)):
        kill_at_some_moment(tmp_path, seed=1000 + kill)
        tear(tmp_path, rng)
        check_all(tmp_path)


def test_an_old_page_of_records_over_new_blocks_is_noticed(tmp_path: Path) -> None:
    """Slots were reused, but the table's page did not reach the disk before the power went."""
    store = open_store(tmp_path)
    capacity = fill(store)
    (file,) = segment_files(tmp_path)
    old_tables = file.read_bytes()[:12288]
    assert all(store.store(entries_of(range(1000, 1000 + capacity // 2))))
    store.close()
    with file.open("r+b") as segment:
        segment.write(old_tables)
    store = open_store(tmp_path)
    answers = loaded(store, range(capacity))
    assert answers == [False] * (capacity // 2) + [True] * (capacity - capacity // 2)
    assert store.take_failures() == {"checksum": capacity // 2}
    assert all(store.store(entries_of(range(1000, 1000 + capacity // 2)))), "no slot is lost"
    store.close()


def test_without_verification_a_tear_would_be_noticed_by_these_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: with sums that are always right, wrong bytes come through."""
    monkeypatch.setattr(DataSums, "of", lambda *_: 7)
    rng = random.Random(13)
    with pytest.raises(WrongBytesError):
        for _ in range(50):
            store = reopen(tmp_path)
            store.store(entries_of(rng.sample(range(NUM_KEYS), 20)))
            store.close()
            tear(tmp_path, rng)
            check_all(tmp_path)
