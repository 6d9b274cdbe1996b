"""What lies in a directory of the SSD tier: looked at, verified, pruned, with real stores."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from tiers.disk_kit import (
    BLOCK_BYTES,
    NAMESPACE,
    disk_bytes,
    entries_of,
    key_of,
    loaded,
    open_store,
    segment_files,
)

from agentkv.errors import ConfigError
from agentkv.tiers.disk.inspect import ages_s, held_still, inspect_disk
from agentkv.tiers.disk.prune import prune_disk, to_prune
from agentkv.tiers.disk.read_segment import read_table
from agentkv.tiers.disk.verify import num_verifiable, verify_disk
from agentkv.tiers.namespace import Namespace

OTHER = Namespace({"model": "other", "layout": "kv-first"})
ROOMY = 64 << 20


def left_behind(path: Path, count: int, namespace: Namespace = NAMESPACE) -> None:
    """What an engine that has ended leaves."""
    store = open_store(path, namespace=namespace, size_bytes=ROOMY, segment_bytes=1 << 20)
    assert all(store.store(entries_of(range(count))))
    store.close()


def content(path: Path) -> dict[str, tuple[str, float]]:
    """Sum and time of change of every file."""
    return {
        str(file): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime)
        for file in path.rglob("*")
        if file.is_file()
    }


def slot_of(path: Path, digest: str, number: int) -> tuple[int, int]:
    """The slot of an entry, and its offset in the file."""
    table = read_table(path, digest)
    assert not isinstance(table, str)
    slot = next(s for s, record in table.records.items() if record.key == key_of(number))
    return slot, table.shape.slot_offset(slot)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())


def test_namespaces_are_told_with_their_manifests_entries_and_engines(tmp_path: Path) -> None:
    left_behind(tmp_path, 7)
    left_behind(tmp_path, 3, OTHER)
    found = {each.digest: each for each in inspect_disk(tmp_path)}
    assert set(found) == {NAMESPACE.digest, OTHER.digest}
    assert found[OTHER.digest].manifest == OTHER
    assert found[NAMESPACE.digest].num_entries == 7
    assert found[OTHER.digest].entry_bytes == 3 * BLOCK_BYTES
    assert not any(each.is_locked for each in found.values())
    assert len(ages_s(list(found.values()))) == 10
    files_bytes = sum(os.lstat(file).st_blocks * 512 for file in segment_files(tmp_path))
    assert sum(each.disk_bytes for each in found.values()) == files_bytes


def test_nothing_is_changed_by_looking(tmp_path: Path) -> None:
    left_behind(tmp_path, 5)
    before = content(tmp_path)
    inspect_disk(tmp_path)
    verify_disk(tmp_path)
    assert content(tmp_path) == before


def test_an_engine_at_work_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert all(store.store(entries_of(range(4))))
    (namespace,) = inspect_disk(tmp_path)
    assert namespace.is_locked and namespace.num_entries == 4
    assert all(store.store(entries_of(range(4, 8)))) and all(loaded(store, range(8)))
    assert inspect_disk(tmp_path)[0].num_entries == 8
    store.close()
    assert not inspect_disk(tmp_path)[0].is_locked


def test_a_second_engine_of_the_namespace_is_told_apart(tmp_path: Path) -> None:
    store = open_store(tmp_path, size_bytes=ROOMY)
    left_behind(tmp_path, 2)
    (namespace,) = inspect_disk(tmp_path)
    assert [engine.is_locked for engine in namespace.engines] == [True, False]
    store.close()


def test_after_a_look_an_engine_finds_its_own_directory_again(tmp_path: Path) -> None:
    left_behind(tmp_path, 5)
    inspect_disk(tmp_path)
    store = open_store(tmp_path, size_bytes=ROOMY, segment_bytes=1 << 20)
    assert all(loaded(store, range(5)))
    store.close()


def test_a_directory_held_still_is_taken_by_no_engine(tmp_path: Path) -> None:
    left_behind(tmp_path, 2)
    folder = tmp_path / NAMESPACE.digest / "engine-0"
    with held_still(folder) as is_free:
        assert is_free
        store = open_store(tmp_path, size_bytes=ROOMY)
        assert store.usage().num_entries == 0
        store.close()
    assert len(inspect_disk(tmp_path)[0].engines) == 2


def test_files_that_are_not_ours_are_passed_over(tmp_path: Path) -> None:
    left_behind(tmp_path, 2)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "seg-00000.kv").write_bytes(b"mine")
    (tmp_path / NAMESPACE.digest / "engine-0" / "seg-x.kv").write_bytes(b"mine")
    (namespace,) = inspect_disk(tmp_path)
    assert namespace.num_entries == 2
    assert len(namespace.engines[0].segments) == len(segment_files(tmp_path / NAMESPACE.digest)) - 1


def test_a_damaged_manifest_and_a_damaged_file_are_told(tmp_path: Path) -> None:
    left_behind(tmp_path, 2)
    (tmp_path / NAMESPACE.digest / "manifest.json").write_text('{"model": "forged"}')
    (file,) = segment_files(tmp_path)
    flip(file, 9)
    (namespace,) = inspect_disk(tmp_path)
    assert namespace.manifest is None and namespace.num_entries == 0
    assert namespace.engines[0].segments[0].problem == "its header is damaged"


def test_a_directory_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        inspect_disk(tmp_path / "none")
    assert inspect_disk(tmp_path) == []


# --- verify ---


def test_sound_entries_are_all_read(tmp_path: Path) -> None:
    left_behind(tmp_path, 70)
    seen: list[None] = []
    (verdict,) = verify_disk(tmp_path, on_entry=lambda: seen.append(None))
    assert (verdict.num_sound, verdict.damages) == (70, ())
    assert len(seen) == num_verifiable(inspect_disk(tmp_path)) == 70


def test_one_flipped_byte_is_found_and_changes_nothing_else(tmp_path: Path) -> None:
    left_behind(tmp_path, 9)
    (file,) = segment_files(tmp_path)
    slot, offset = slot_of(file, NAMESPACE.digest, 4)
    flip(file, offset + BLOCK_BYTES - 1)
    before = content(tmp_path)
    (verdict,) = verify_disk(tmp_path)
    assert verdict.num_sound == 8
    (damage,) = verdict.damages
    assert (damage.slot, damage.key, damage.path) == (slot, key_of(4).hex(), file)
    assert content(tmp_path) == before


def test_right_bytes_in_the_wrong_slot_are_damage(tmp_path: Path) -> None:
    left_behind(tmp_path, 2)
    (file,) = segment_files(tmp_path)
    _, one = slot_of(file, NAMESPACE.digest, 0)
    _, other = slot_of(file, NAMESPACE.digest, 1)
    raw = bytearray(file.read_bytes())
    raw[one : one + BLOCK_BYTES] = raw[other : other + BLOCK_BYTES]
    file.write_bytes(raw)
    (verdict,) = verify_disk(tmp_path)
    assert [damage.key for damage in verdict.damages] == [key_of(0).hex()]


def test_a_damaged_record_is_found(tmp_path: Path) -> None:
    left_behind(tmp_path, 3)
    (file,) = segment_files(tmp_path)
    slot, _ = slot_of(file, NAMESPACE.digest, 1)
    flip(file, 4096 + 64 * slot + 30)
    (verdict,) = verify_disk(tmp_path)
    assert verdict.num_sound == 2
    assert [(d.slot, d.problem) for d in verdict.damages] == [(slot, "its record is damaged")]


def test_dropped_damage_is_gone_and_the_rest_is_found_by_the_next_engine(tmp_path: Path) -> None:
    left_behind(tmp_path, 9)
    (file,) = segment_files(tmp_path)
    _, offset = slot_of(file, NAMESPACE.digest, 4)
    slot, _ = slot_of(file, NAMESPACE.digest, 5)
    flip(file, offset)
    flip(file, 4096 + 64 * slot + 30)
    (verdict,) = verify_disk(tmp_path, drop_damaged=True)
    assert (verdict.num_sound, len(verdict.damages), verdict.num_dropped) == (7, 2, 2)
    (verdict,) = verify_disk(tmp_path)
    assert (verdict.num_sound, verdict.damages) == (7, ())
    store = open_store(tmp_path, size_bytes=ROOMY, segment_bytes=1 << 20)
    assert store.take_failures() == {}
    assert loaded(store, range(9)) == [number not in (4, 5) for number in range(9)]
    store.close()


def test_a_file_with_a_damaged_header_is_dropped_whole(tmp_path: Path) -> None:
    left_behind(tmp_path, 3)
    (file,) = segment_files(tmp_path)
    flip(file, 9)
    assert verify_disk(tmp_path)[0].damages[0].slot is None and file.exists()
    assert verify_disk(tmp_path, drop_damaged=True)[0].num_dropped == 1
    assert not file.exists()


def test_a_cut_file_is_damage(tmp_path: Path) -> None:
    left_behind(tmp_path, 3)
    (file,) = segment_files(tmp_path)
    os.truncate(file, file.stat().st_size - 4096)
    (damage,) = verify_disk(tmp_path)[0].damages
    assert damage.problem == "its size is not what its header says"


@pytest.mark.parametrize("drop_damaged", [False, True])
def test_what_an_engine_uses_is_left_alone(tmp_path: Path, drop_damaged: bool) -> None:
    store = open_store(tmp_path)
    assert all(store.store(entries_of(range(4))))
    (file,) = segment_files(tmp_path)
    _, offset = slot_of(file, NAMESPACE.digest, 2)
    flip(file, offset)
    (verdict,) = verify_disk(tmp_path, drop_damaged=drop_damaged)
    assert verdict.is_in_use and verdict.num_sound == 0 and verdict.damages == ()
    assert loaded(store, range(4)) == [True, True, False, True]
    store.close()


# --- prune ---


def test_only_what_is_not_kept_goes(tmp_path: Path) -> None:
    left_behind(tmp_path, 3)
    left_behind(tmp_path, 3, OTHER)
    gone = prune_disk(to_prune(inspect_disk(tmp_path), keep=[NAMESPACE.digest]))
    assert [engine.folder.parent.name for engine in gone] == [OTHER.digest]
    assert [each.digest for each in inspect_disk(tmp_path)] == [NAMESPACE.digest]
    assert not (tmp_path / OTHER.digest).exists()


def test_only_what_is_old_goes(tmp_path: Path) -> None:
    left_behind(tmp_path, 3)
    left_behind(tmp_path, 3, OTHER)
    week_ago_s = time.time() - 7 * 86400 - 60
    for file in (tmp_path / OTHER.digest / "engine-0").iterdir():
        os.utime(file, (week_ago_s, week_ago_s))
    chosen = to_prune(inspect_disk(tmp_path), older_than_s=7 * 86400.0)
    assert [engine.folder.parent.name for engine in chosen] == [OTHER.digest]
    assert to_prune(inspect_disk(tmp_path), older_than_s=8 * 86400.0) == []


def test_an_engine_at_work_keeps_its_directory(tmp_path: Path) -> None:
    store = open_store(tmp_path, size_bytes=ROOMY)
    assert all(store.store(entries_of(range(4))))
    left_behind(tmp_path, 2)
    chosen = to_prune(inspect_disk(tmp_path))
    assert [engine.folder.name for engine in chosen] == ["engine-1"]
    prune_disk(chosen)
    assert all(loaded(store, range(4)))
    store.close()


def test_a_directory_taken_since_the_look_stays(tmp_path: Path) -> None:
    left_behind(tmp_path, 4)
    chosen = to_prune(inspect_disk(tmp_path))
    store = open_store(tmp_path, size_bytes=ROOMY, segment_bytes=1 << 20)
    assert prune_disk(chosen) == []
    assert all(loaded(store, range(4)))
    store.close()
    assert len(prune_disk(chosen)) == 1
    assert disk_bytes(tmp_path) == os.lstat(tmp_path).st_blocks * 512
