"""The table of checksums that several processes share."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentkv.connectors.chunk_sums import NO_SUM, ChunkSums, checksum

PAGE_BYTES = 64


def table(path: Path | None = None, *, num_workers: int = 2, num_chunks: int = 4) -> ChunkSums:
    return ChunkSums(
        num_workers=num_workers,
        num_chunks=num_chunks,
        page_bytes=PAGE_BYTES,
        path=None if path is None else str(path),
    )


def row(seed: int, num_pages: int = 2) -> memoryview:
    """A chunk's bytes: one page for each worker."""
    return memoryview(bytearray(np.random.default_rng(seed).bytes(num_pages * PAGE_BYTES)))


def test_a_chunk_without_a_sum_matches_nothing() -> None:
    sums = table()
    assert not sums.matches(0, row(1))
    assert not sums.matches(0, memoryview(bytearray(2 * PAGE_BYTES)))


def test_what_was_noted_matches_until_it_is_forgotten() -> None:
    sums, data = table(), row(1)
    sums.note(2, data)
    assert sums.matches(2, data)
    assert not sums.matches(1, data) and not sums.matches(2, row(2))
    sums.forget(2)
    assert not sums.matches(2, data)


@pytest.mark.parametrize("at", [0, PAGE_BYTES - 1, PAGE_BYTES, 2 * PAGE_BYTES - 1])
def test_one_flipped_bit_in_any_workers_page_is_noticed(at: int) -> None:
    sums, data = table(), row(1)
    sums.note(0, data)
    data[at] ^= 1
    assert not sums.matches(0, data)


def test_a35_a_chunk_that_one_worker_has_not_stored_is_not_there() -> None:
    """Four ranks: each notes its own page; one missing is enough for a miss."""
    sums, data = table(num_workers=4), row(1, 4)
    for rank in range(4):
        if rank != 2:
            page = data[rank * PAGE_BYTES : (rank + 1) * PAGE_BYTES]
            sums.of_worker(rank)[3] = checksum(page)
    assert not sums.matches(3, data)
    sums.of_worker(2)[3] = checksum(data[2 * PAGE_BYTES : 3 * PAGE_BYTES])
    assert sums.matches(3, data)


def test_pages_that_changed_places_are_noticed() -> None:
    sums, data = table(), row(1)
    sums.note(0, data)
    swapped = memoryview(bytearray(bytes(data[PAGE_BYTES:]) + bytes(data[:PAGE_BYTES])))
    assert not sums.matches(0, swapped)


def test_no_real_checksum_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.connectors.chunk_sums.xxhash.xxh3_64_intdigest", lambda _: NO_SUM)
    assert checksum(b"anything") != NO_SUM


def _note_in_another_process(path: str) -> None:
    table(Path(path)).of_worker(1)[3] = 77


def test_another_process_sees_the_same_table(tmp_path: Path) -> None:
    sums = table(tmp_path / "sums")
    other = multiprocessing.get_context("spawn").Process(
        target=_note_in_another_process, args=(str(tmp_path / "sums"),)
    )
    other.start()
    other.join()
    assert sums.of_worker(1)[3] == 77 and not sums.of_worker(0).any()
    sums.close()


def test_whoever_comes_second_wipes_nothing(tmp_path: Path) -> None:
    first, data = table(tmp_path / "sums"), row(1)
    first.note(1, data)
    second = table(tmp_path / "sums")
    assert second.matches(1, data) and first.matches(1, data)


def test_only_its_maker_removes_the_name(tmp_path: Path) -> None:
    path = tmp_path / "sums"
    first, second = table(path), table(path)
    second.close()
    assert path.exists()
    first.close()
    first.close()
    assert not path.exists()


def test_a_table_whose_name_was_taken_away_is_shared_all_the_same(tmp_path: Path) -> None:
    """A69: what has no name goes with the last process, however it ends."""
    path = tmp_path / "sums"
    first, second = table(path), table(path)
    second.take_name_away()
    second.take_name_away()
    assert not path.exists()
    data = row(1)
    first.note(0, data)
    assert second.matches(0, data)
    stranger = table(path)
    assert not stranger.matches(0, data), "a name of its own"
    stranger.close()
    first.close()
    assert not path.exists()


def test_a_table_of_its_own_has_no_name() -> None:
    sums = table()
    sums.take_name_away()
    sums.close()
    sums.note(0, row(1))
    assert sums.matches(0, row(1))


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    sums = table(tmp_path / "sums")
    assert os.stat(tmp_path / "sums").st_mode & 0o077 == 0
    sums.close()


def test_a70_a_table_that_does_not_fit_stops_the_start_with_one_line(tmp_path: Path) -> None:
    """A lack of room found later, in shared memory, would be a fatal signal."""
    code = (
        "import resource, sys\n"
        "from agentkv.connectors.chunk_sums import ChunkSums\n"
        "from agentkv.errors import ConfigError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "try:\n"
        "    ChunkSums(num_workers=1, num_chunks=1 << 17, page_bytes=4096, path=sys.argv[1])\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    path = tmp_path / "sums"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "no room for 1048576 bytes of checksums" in done.stdout
    assert not path.exists()
