"""Shared parts of the disk tier's tests: blocks whose bytes follow from their keys."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from agentkv.tiers.base import Entry
from agentkv.tiers.disk.store import DiskStore
from agentkv.tiers.namespace import Namespace

BLOCK_BYTES = 16384
NAMESPACE = Namespace({"model": "tiny", "layout": "kv-first"})
KiB, MiB = 1 << 10, 1 << 20


def open_store(path: Path, **changes: object) -> DiskStore:
    """A store of 64 blocks and a little, which may fill the disk."""
    options: dict[str, object] = {
        "size_bytes": 1200 * KiB,
        "block_bytes": BLOCK_BYTES,
        "namespace": NAMESPACE,
        "min_free_bytes": 0,
        "uses_callers_memory": True,  # So that both ways are taken: by the address.
    }
    return DiskStore(path, **{**options, **changes})  # type: ignore[arg-type]


def key_of(number: int) -> bytes:
    """36 bytes, as long as vLLM's."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest() + number.to_bytes(4, "little")


def content_of(key: bytes, num_bytes: int = BLOCK_BYTES) -> bytes:
    """Pseudo-random bytes that only this key has."""
    seed = int.from_bytes(hashlib.sha256(key).digest()[:8], "little")
    return np.random.default_rng(seed).bytes(num_bytes)


def memory(num_bytes: int = BLOCK_BYTES) -> memoryview:
    """Page-aligned, so that direct I/O takes it as it is."""
    return memoryview(mmap.mmap(-1, -(-num_bytes // 4096) * 4096))[:num_bytes]


def entry_of(number: int, num_bytes: int = BLOCK_BYTES) -> Entry:
    """What is to be stored under a key."""
    entry = Entry(key_of(number), memory(num_bytes))
    entry.data[:] = content_of(entry.key, num_bytes)
    return entry


def entries_of(numbers: Iterable[int], num_bytes: int = BLOCK_BYTES) -> list[Entry]:
    return [entry_of(number, num_bytes) for number in numbers]


class WrongBytesError(AssertionError):
    """A load said yes and brought something else."""


def loaded(store: DiskStore, numbers: Iterable[int]) -> list[bool]:
    """Loads keys by one call; what is said to be loaded must be right."""
    entries = [Entry(key_of(n), memory(store.block_bytes)) for n in numbers]
    answers = store.load(entries)
    for entry, answer in zip(entries, answers, strict=True):
        if answer and entry.data != content_of(entry.key, store.block_bytes):
            raise WrongBytesError(f"wrong bytes under {entry.key.hex()}")
    return answers


def disk_bytes(path: Path) -> int:
    """What all of a directory takes, as `du` would say."""
    items = [path, *path.rglob("*")]
    return sum(os.lstat(item).st_blocks * 512 for item in items)


def segment_files(path: Path) -> list[Path]:
    return sorted(path.rglob("seg-*.kv"))


def fill(store: DiskStore) -> int:
    """Stores entries from 0 on until no more fit; returns how many."""
    num_entries = sum(store.store(entries_of(range(200))))
    assert store.take_failures() == {"no_room": 200 - num_entries}
    assert store.usage().num_entries == num_entries
    return num_entries
