"""How much of the disk a store takes, and whose files it touches."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers.disk_kit import (
    BLOCK_BYTES,
    NAMESPACE,
    KiB,
    MiB,
    disk_bytes,
    entries_of,
    entry_of,
    fill,
    key_of,
    loaded,
    open_store,
    segment_files,
)

from agentkv.errors import ConfigError
from agentkv.tiers.namespace import Namespace, explain_misses

OTHER = Namespace({**NAMESPACE.fields, "layout": "block-first"})


@pytest.mark.parametrize("segment_bytes", [None, 300 * KiB, 100 * KiB])
@pytest.mark.parametrize("block_bytes", [4096, 16384, 100_000])
def test_all_files_together_never_take_more_than_allowed(
    tmp_path: Path, segment_bytes: int | None, block_bytes: int
) -> None:
    """A60: five times the limit is stored; the real bytes are measured after each call."""
    limit_bytes = 2 * MiB
    store = open_store(
        tmp_path, size_bytes=limit_bytes, segment_bytes=segment_bytes, block_bytes=block_bytes
    )
    before_bytes = os.lstat(tmp_path).st_blocks * 512
    num_blocks = 5 * limit_bytes // block_bytes
    for start in range(0, num_blocks, 8):
        store.store(entries_of(range(start, start + 8), block_bytes))
        assert disk_bytes(tmp_path) - before_bytes <= limit_bytes
    assert store.usage().used_bytes > 0.8 * limit_bytes, "and what is allowed is used"
    store.close()
    open_store(tmp_path, size_bytes=limit_bytes, block_bytes=block_bytes).close()
    assert disk_bytes(tmp_path) <= limit_bytes


def test_files_grow_with_what_is_stored(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_bytes=300 * KiB)
    assert disk_bytes(tmp_path) < 40 * KiB
    store.store([entry_of(1)])
    assert 200 * KiB < disk_bytes(tmp_path) < 340 * KiB
    store.close()


def test_a_name_that_something_else_has_is_left_to_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    folder = next(tmp_path.rglob("engine-0"))
    (folder / "seg-00000.kv").mkdir()
    assert store.store([entry_of(1)]) == [True]
    assert loaded(store, [1]) == [True]
    store.close()


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [
        ("weights", "sha256:aaa", "sha256:bbb"),  # A04
        ("layout", "kv-first", "block-first"),  # A05
        ("kv_dtype", "float16", "bfloat16"),  # A06
        ("kv_dtype", "fp8_e4m3", "fp8_e5m2"),  # A06
        ("rank", "0 of 1", "0 of 2"),  # A07
    ],
)
def test_another_namespace_finds_nothing_says_why_and_leaves_the_files(
    tmp_path: Path, field: str, before: str, after: str
) -> None:
    """A04, A05, A06, A07: equal sizes and keys, other meaning: a miss, and it can be explained."""
    size_bytes = 3 * MiB
    old = Namespace({"model": "tiny", field: before})
    store = open_store(tmp_path, namespace=old, segment_bytes=300 * KiB, size_bytes=size_bytes)
    store.store(entries_of(range(10)))
    store.close()
    (file,) = segment_files(tmp_path)
    content = file.read_bytes()

    new = Namespace({"model": "tiny", field: after})
    store = open_store(tmp_path, namespace=new, segment_bytes=300 * KiB, size_bytes=size_bytes)
    assert store.contains([key_of(n) for n in range(10)]) == [False] * 10
    assert not any(loaded(store, range(10)))
    assert explain_misses(new, store.other_namespaces()) == field
    assert all(store.store(entries_of(range(5))))
    store.close()
    assert file.read_bytes() == content

    store = open_store(tmp_path, namespace=old, segment_bytes=300 * KiB, size_bytes=size_bytes)
    assert all(loaded(store, range(10)))
    store.close()


def test_the_first_store_has_nobody_beside_it(tmp_path: Path) -> None:
    (tmp_path / "somebody").mkdir()
    (tmp_path / ("0" * 32)).mkdir()
    (tmp_path / ("0" * 32) / "manifest.json").write_bytes(OTHER.manifest)  # Not at its place.
    store = open_store(tmp_path)
    assert store.other_namespaces() == []
    assert (tmp_path / NAMESPACE.digest / "manifest.json").read_bytes() == NAMESPACE.manifest
    store.close()


def test_ranks_have_each_their_own_entries(tmp_path: Path) -> None:
    """A35: a shard that one rank misses is missing there, whatever the others have."""
    ranks = [
        open_store(tmp_path, namespace=Namespace({"rank": f"{rank} of 4"})) for rank in range(4)
    ]
    for store in ranks:
        store.store(entries_of(range(6)))
    ranks[2].delete([key_of(3)])
    found = [store.contains([key_of(n) for n in range(6)]) for store in ranks]
    assert [all(answers) for answers in zip(*found, strict=True)] == [True] * 3 + [False] + [
        True
    ] * 2
    for store in ranks:
        store.close()


def test_a_namespace_cannot_lead_out_of_the_path(tmp_path: Path) -> None:
    """A68: a namespace of `../x` or an absolute path is only a name."""
    home = tmp_path / "home"
    for evil in ("../x", "/tmp/x", "a/b", "\0"):
        store = open_store(home, namespace=Namespace({evil: evil}))
        store.store([entry_of(1)])
        store.close()
    assert list(tmp_path.iterdir()) == [home]


# --- two engines, and what earlier ones left ---


def test_two_engines_with_one_path_do_not_meet(tmp_path: Path) -> None:
    """A67, A69: each has a directory of its own, and finds it again."""
    first, second = open_store(tmp_path), open_store(tmp_path)
    first.store([entry_of(1)])
    second.store([entry_of(2)])
    assert (loaded(first, [1, 2]), loaded(second, [1, 2])) == ([True, False], [False, True])
    first.close()
    again = open_store(tmp_path)
    assert loaded(again, [1, 2]) == [True, False]
    again.close()
    second.close()


def test_a_killed_engine_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    """A69: five kills leave one directory's worth, and the sixth start finds it."""
    code = (
        "import sys, time; from pathlib import Path; from tiers.disk_kit import *\n"
        "store = open_store(Path(sys.argv[1])); store.store(entries_of(range(200)))\n"
        "print('full', flush=True); time.sleep(60)"
    )
    for _ in range(5):
        with _python(code, str(tmp_path)) as engine:
            assert engine.stdout is not None and engine.stdout.readline() == b"full\n"
            engine.send_signal(signal.SIGKILL)
        assert disk_bytes(tmp_path) <= 1200 * KiB
    store = open_store(tmp_path)
    assert store.usage().num_entries == fill(open_store(tmp_path / "other"))
    assert [p.name for p in tmp_path.rglob("engine-*")].count("engine-0") == 2
    assert not list(tmp_path.rglob("engine-1"))
    store.close()


def _python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    tests = Path(__file__).parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tests)},
    )


@pytest.fixture
def old_stores(tmp_path: Path) -> Iterator[list[Namespace]]:
    """Three full stores of other namespaces, the first the oldest; nobody uses them."""
    namespaces = [Namespace({"model": f"old-{n}"}) for n in range(3)]
    for age, namespace in zip((30, 20, 10), namespaces, strict=True):
        store = open_store(
            tmp_path, namespace=namespace, size_bytes=3 * MiB, segment_bytes=500 * KiB
        )
        store.store(entries_of(range(25)))
        store.close()
        lock = tmp_path / namespace.digest / "engine-0" / "lock"
        os.utime(lock, (lock.stat().st_mtime - age,) * 2)
    yield namespaces


def remaining(path: Path, namespaces: list[Namespace]) -> list[bool]:
    return [bool(segment_files(path / namespace.digest)) for namespace in namespaces]


def test_old_namespaces_stay_while_all_fits_into_the_size(
    tmp_path: Path, old_stores: list[Namespace]
) -> None:
    store = open_store(tmp_path, size_bytes=2 * MiB, segment_bytes=200 * KiB)
    assert remaining(tmp_path, old_stores) == [True, True, True]
    numbers = iter(range(1000))
    seen = []
    while store.usage().num_entries < 100:
        store.store([entry_of(next(numbers))])
        assert disk_bytes(tmp_path) <= 2 * MiB + 64 * KiB
        seen.append(remaining(tmp_path, old_stores))
    assert seen == sorted(seen, reverse=True), "the oldest first, one by one, as space is needed"
    assert [False, True, True] in seen
    assert seen[-1] == [False, False, False]
    assert not (tmp_path / old_stores[0].digest).exists(), "nothing of it is left"
    store.close()


def test_a_start_deletes_old_namespaces_that_are_over_the_size(
    tmp_path: Path, old_stores: list[Namespace]
) -> None:
    store = open_store(tmp_path, size_bytes=1200 * KiB)
    assert remaining(tmp_path, old_stores) == [False, True, True]
    assert len(store.other_namespaces()) == 3, "who was there can still be told"
    store.close()


def test_the_directory_of_a_running_engine_is_never_deleted(
    tmp_path: Path, old_stores: list[Namespace]
) -> None:
    running = open_store(tmp_path, namespace=old_stores[0], size_bytes=3 * MiB)
    open_store(tmp_path, size_bytes=1100 * KiB).close()
    assert remaining(tmp_path, old_stores) == [True, True, True], "its bytes are not idle"
    store = open_store(tmp_path, size_bytes=500 * KiB)
    fill(store)
    assert remaining(tmp_path, old_stores) == [True, False, False]
    assert all(loaded(running, range(25)))
    running.close()
    store.close()


def test_files_that_are_not_ours_keep_their_directory(
    tmp_path: Path, old_stores: list[Namespace]
) -> None:
    note = tmp_path / old_stores[0].digest / "engine-0" / "note.txt"
    note.write_text("keep me")
    store = open_store(tmp_path, size_bytes=500 * KiB)
    fill(store)
    assert remaining(tmp_path, old_stores) == [False, False, False]
    assert note.read_text() == "keep me"
    store.close()


def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path, old_stores: list[Namespace]) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "home").mkdir()
    (tmp_path / old_stores[0].digest).rename(outside)
    (tmp_path / "home" / old_stores[0].digest).symlink_to(outside)
    store = open_store(tmp_path / "home", size_bytes=200 * KiB)
    store.store(entries_of(range(50)))
    assert segment_files(outside)
    store.close()


def test_an_unused_directory_of_the_same_namespace_goes_only_after_a_day(tmp_path: Path) -> None:
    """Engines that start one after the other must find each what is theirs."""
    stores = [open_store(tmp_path, size_bytes=500 * KiB) for _ in range(2)]
    for store in stores:
        fill(store)
    for store in stores:
        store.close()
    open_store(tmp_path, size_bytes=500 * KiB).close()
    assert len(segment_files(tmp_path)) == 2
    lock = next(tmp_path.rglob("engine-1")) / "lock"
    os.utime(lock, (lock.stat().st_mtime - 25 * 3600,) * 2)
    open_store(tmp_path, size_bytes=500 * KiB).close()
    assert len(segment_files(tmp_path)) == 1


# --- what the user must mend ---


def test_a_path_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"/file: cannot be used .*name a directory"):
        open_store(file)


def test_a_path_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/proc/agentkv: cannot be used"):
        open_store(Path("/proc/agentkv"))


def test_a_size_without_room_for_a_block_is_named_with_the_least_that_will_do(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="too few for one block of 16384 bytes") as caught:
        open_store(tmp_path, size_bytes=BLOCK_BYTES)
    least_bytes = int(str(caught.value).rsplit(" ", 1)[1])
    store = open_store(tmp_path, size_bytes=least_bytes)
    assert store.store([entry_of(1)]) == [True]
    store.close()


def test_a_failed_start_leaves_the_place_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_store(tmp_path, size_bytes=1)
    open_store(tmp_path).close()
    assert not list(tmp_path.rglob("engine-1"))


def test_a_size_above_what_is_free_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A61, A70: the tier is smaller then, instead of failing later."""
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path, size_bytes=1 << 60)
    assert "bytes less free than the tier may take; it will be smaller" in caplog.text
    store.close()


def test_some_of_the_disk_stays_free_for_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path, min_free_bytes=1 << 60)
    assert "nothing more is stored there: free some, or set ssd.min_free_bytes" in caplog.text
    assert store.store([entry_of(1)]) == [False]
    assert store.take_failures() == {"disk_full": 1, "no_room": 1}
    assert not segment_files(tmp_path)
    store.close()
