"""Every fault of a disk and of a Redis, in a row: each block loaded is right, or it is missed.

Seeded and endless: AGENTKV_STORE_MIX_BLOCKS says how many blocks have to be loaded right, half of
them from each tier (the default is CI's share, in which each fault comes at least once;
`bash ci/faults.sh` asks for a million).
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import redis
from kit import redis_rig
from kit.redis_server import RedisServer, running
from tiers.disk_device import Device
from tiers.disk_kit import BLOCK_BYTES, KiB, MiB, WrongBytesError, open_store, segment_files
from tiers.fault_mix import NUM_KEYS, Fault, Mix, Subject, Tally

from agentkv.clock import ManualClock
from agentkv.tiers.disk.records import Shape
from agentkv.tiers.disk.store import DiskStore
from agentkv.tiers.redis import commands as redis_commands
from agentkv.tiers.redis.store import RedisStore

NUM_BLOCKS = int(os.environ.get("AGENTKV_STORE_MIX_BLOCKS", "12000"))
PAUSES_S = 61.0  # The longest that a store leaves alone what has failed.
MAX_MEMORY = "6mb"
PART_BYTES = 6000  # so that an entry has three parts
SHAPE = Shape(BLOCK_BYTES, 64)  # As of every segment here, which have fewer slots.


class DiskFaults:
    """What befalls a disk store of fewer slots than keys: it is full, and evicts all the time."""

    def __init__(self, path: Path, device: Device, seed: int) -> None:
        self._path = path
        self._device = device
        self._clock = ManualClock(1000.0)
        self._random = random.Random(seed)
        self.tally = Tally()
        self.subject = Subject(self._open, is_delete_final=True)
        self.mix = Mix(self.subject, self.tally, after=lambda: self._clock.advance(PAUSES_S))
        damages = ("checksum", "short_read")
        at_start = (*damages, "damaged_record", "damaged_segment")
        self.faults = {
            "bytes flipped": Fault(self._in_files(self.flip), damages),
            "ranges overwritten": Fault(self._in_files(self.overwrite), damages),
            "blocks moved": Fault(self._in_files(self.move), damages),
            "files cut": Fault(self._in_files(self.cut), damages),
            "files deleted": Fault(self._in_files(Path.unlink), ("lost_file",)),
            "directory deleted": Fault(self.delete_directory, ("lost_file",)),
            "no reads": self._failing("preadv", errno.EIO, "io_error"),
            "read-only": self._failing("pwritev", errno.EROFS, "io_error"),
            "disk full": self._failing("pwritev", errno.ENOSPC, "disk_full"),
            "stalled": Fault(self.stall),
            "cleared": Fault(self.clear),
            "restarted": Fault(self.subject.reopen),
            "restarted on damage": Fault(self.damage_and_reopen, at_start),
        }

    def _open(self) -> contextlib.AbstractContextManager[DiskStore]:
        store = open_store(
            self._path, size_bytes=4 * MiB, segment_bytes=900 * KiB, clock=self._clock
        )
        return contextlib.closing(store)

    def _in_files(self, damage: Callable[[Path], object]) -> Callable[[], object]:
        def inject() -> None:
            for file in segment_files(self._path):
                # The store may have deleted it meanwhile, as one of a directory that it lost.
                with contextlib.suppress(FileNotFoundError):
                    damage(file)

        return inject

    def _failing(self, call: str, error: int, reason: str) -> Fault:
        return Fault(
            lambda: self._device.failing.update({call: error}),
            (reason,),
            self._device.failing.clear,
        )

    # --- each of one file, in use or not ---

    def flip(self, file: Path) -> None:
        with file.open("r+b") as segment:
            for _ in range(10):
                at = self._somewhere(file)
                (byte,) = os.pread(segment.fileno(), 1, at) or b"\0"
                os.pwrite(segment.fileno(), bytes([byte ^ 1 << self._random.randrange(8)]), at)

    def overwrite(self, file: Path) -> None:
        num_bytes = self._random.choice((1, 64, 512, 4096, 40_000))
        raw = self._random.choice((bytes(num_bytes), self._random.randbytes(num_bytes)))
        with file.open("r+b") as segment:
            for _ in range(4):
                os.pwrite(segment.fileno(), raw, self._somewhere(file))

    def move(self, file: Path) -> None:
        """Blocks, whole, into other slots; their records stay as they are."""
        num_slots = file.stat().st_size // BLOCK_BYTES or 1
        with file.open("r+b") as segment:
            for _ in range(4):
                here, there = (self._random.randrange(num_slots) for _ in range(2))
                block = os.pread(segment.fileno(), BLOCK_BYTES, SHAPE.slot_offset(here))
                os.pwrite(segment.fileno(), block, SHAPE.slot_offset(there))

    def cut(self, file: Path) -> None:
        os.truncate(file, self._somewhere(file))

    def _somewhere(self, file: Path) -> int:
        """A third of the damage goes to header and table, which are small."""
        num_bytes = file.stat().st_size or 1
        is_small = self._random.random() < 1 / 3
        return self._random.randrange(min(num_bytes, SHAPE.data_offset) if is_small else num_bytes)

    # --- of the whole ---

    def delete_directory(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)  # The store makes new files in it meanwhile.

    def stall(self) -> None:
        """Until it is given up; then the device goes on, and late answers come."""
        store = self.subject.store

        def is_given_up() -> bool:
            self._clock.advance(11.0)
            return not store.is_available

        self._device.goes_on.clear()
        try:
            self.tally.wait_until(is_given_up, "it waits for ever")
        finally:
            self._device.goes_on.set()

    def clear(self) -> None:
        self.subject.delete(range(NUM_KEYS), lambda store: store.clear())

    def damage_and_reopen(self) -> None:
        damages = (self.flip, self.overwrite, self.move, self.cut)
        self.subject.reopen(self._in_files(lambda file: self._random.choice(damages)(file)))


class RedisFaults:
    """What befalls a store on a server that has room for fewer blocks than there are keys.

    Deletes are not final: what a server was told before it froze, it may do after them.
    """

    def __init__(self, server: RedisServer, seed: int) -> None:
        self._server = server
        self._clock = ManualClock(1000.0)
        self._random = random.Random(seed)
        self._old_parts: dict[bytes, bytes] = {}
        self.tally = Tally()
        self.subject = Subject(self._open, is_delete_final=False)
        self.mix = Mix(self.subject, self.tally, after=lambda: self._clock.advance(PAUSES_S))
        self.faults = {
            "bytes flipped": Fault(self._in_parts(self.flip), ("checksum",)),
            "parts exchanged": Fault(self._in_parts(self.exchange), ("checksum", "wrong_length")),
            "parts cut": Fault(self._in_parts(self.cut), ("wrong_length",)),
            "parts of other types": Fault(self._in_parts(self.retype), ("wrong_type",)),
            "parts deleted": Fault(self._in_parts(redis.Redis.delete), ("missing",)),
            "old parts": Fault(self.bring_back, ("mixed_writes",)),
            "evicting": self._configured({"maxmemory": "3mb"}),
            "full": self._configured(
                {"maxmemory-policy": "noeviction", "maxmemory": "1"}, "server_full"
            ),
            "flushed": Fault(self.flush),
            "connections cut": Fault(self.cut_connections),
            "killed": Fault(self.restart_server),
            "frozen": Fault(self.freeze, ("timeout",)),
            "cleared": Fault(lambda: self.subject.store.clear()),
            "restarted": Fault(self.subject.reopen),
        }

    def _open(self) -> contextlib.AbstractContextManager[RedisStore]:
        return redis_rig.open_store(
            self._server.url,
            block_bytes=BLOCK_BYTES,
            value_bytes=PART_BYTES,
            connect_timeout_s=1.0,
            timeout_s=1.0,
            call_timeout_s=2.0,
            clock=self._clock,
        )

    def _client(self) -> contextlib.AbstractContextManager[redis.Redis]:
        return contextlib.closing(self._server.client())

    def _in_parts(self, damage: Callable[[redis.Redis, bytes], object]) -> Callable[[], object]:
        def inject() -> None:
            with self._client() as client:
                names = client.keys("agentkv:1:*{*")
                for name in self._random.sample(names, min(20, len(names))):
                    # It may have got another type by an earlier fault, or be gone by now.
                    with contextlib.suppress(redis.ResponseError):
                        damage(client, name)

        return inject

    def _configured(self, changes: Mapping[str, str], *reasons: str) -> Fault:
        def configure(settings: Mapping[str, str]) -> None:
            with self._client() as client:
                for name, text in settings.items():
                    client.config_set(name, text)

        usual = {name.replace("_", "-"): text for name, text in self._server.settings.items()}
        return Fault(lambda: configure(changes), reasons, lambda: configure(usual))

    # --- each of one part ---

    def flip(self, client: redis.Redis, name: bytes) -> None:
        at = self._random.randrange(client.strlen(name) or 1)
        byte = client.getrange(name, at, at) or b"\0"
        client.setrange(name, at, bytes([byte[0] ^ 1 << self._random.randrange(8)]))

    def exchange(self, client: redis.Redis, name: bytes) -> None:
        """With a part of any entry, or with another one of its own."""
        other = client.randomkey() or name
        values = client.mget(name, other)
        if None not in values:
            client.mset({name: values[1], other: values[0]})

    def cut(self, client: redis.Redis, name: bytes) -> None:
        client.set(name, client.getrange(name, 0, self._random.randrange(PART_BYTES)))

    def retype(self, client: redis.Redis, name: bytes) -> None:
        client.delete(name)
        client.lpush(name, b"damage")

    # --- of the whole ---

    def bring_back(self) -> None:
        """Sound first parts, each of an earlier write of its entry than the others."""
        with self._client() as client:
            for name in client.keys("agentkv:1:*{*}:0-*"):
                value = client.get(name)
                if value and self._old_parts.setdefault(name, value) != value:
                    client.set(name, self._old_parts.pop(name))

    def flush(self) -> None:
        with self._client() as client:
            client.flushall()

    def cut_connections(self) -> None:
        with self._client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def restart_server(self) -> None:
        self._server.kill()
        self._server.start()

    def freeze(self) -> None:
        """Until it is given up; what it was told meanwhile it does later."""
        store = self.subject.store
        self._server.freeze()
        try:
            self.tally.wait_until(lambda: not store.is_available, "it is asked for ever")
        finally:
            self._server.thaw()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    settings = {"maxmemory": MAX_MEMORY, "maxmemory_policy": "allkeys-lru"}
    with running(tmp_path / "redis", **settings) as server:
        yield server


def test_every_block_from_the_disk_is_right_or_missed(tmp_path: Path, device: Device) -> None:
    disk = DiskFaults(tmp_path / "kv", device, seed=1)
    disk.mix.run(disk.faults, NUM_BLOCKS // 2, seed=1)
    tell(disk.mix)


def test_every_block_from_redis_is_right_or_missed(server: RedisServer) -> None:
    remote = RedisFaults(server, seed=2)
    remote.mix.run(remote.faults, NUM_BLOCKS // 2, seed=2)
    assert not remote.subject.reasons["internal"], "the store met a fault of its own"
    tell(remote.mix)


def test_without_sums_the_disks_mix_would_fail(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: damaged bytes come through, and the comparison notices them."""
    monkeypatch.setattr("agentkv.tiers.disk.records.DataSums.of", lambda *_: 7)
    disk = DiskFaults(tmp_path / "kv", device, seed=3)
    with pytest.raises(WrongBytesError, match="wrong bytes under key"):
        disk.mix.run({"bytes flipped": disk.faults["bytes flipped"]}, NUM_BLOCKS, seed=3)


def test_without_sums_the_mix_on_redis_would_fail(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_commands, "written_as", lambda *_: 7)
    remote = RedisFaults(server, seed=4)
    with pytest.raises(WrongBytesError, match="wrong bytes under key"):
        remote.mix.run({"bytes flipped": remote.faults["bytes flipped"]}, NUM_BLOCKS, seed=4)


def test_without_deletes_the_disks_mix_would_fail(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted comes back, whole and right but for its age."""
    monkeypatch.setattr(DiskStore, "delete", lambda *_: 0)
    disk = DiskFaults(tmp_path / "kv", device, seed=5)
    with pytest.raises(WrongBytesError, match="was deleted"):
        disk.mix.run({"disk full": disk.faults["disk full"]}, NUM_BLOCKS, seed=5)


def tell(mix: Mix) -> None:
    """To the error output, for a worker of pytest-xdist has no other."""
    print(mix.report(), file=sys.stderr)
