"""Each mover moves real bytes, brings the same back, and says so if it does not."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from kit.redis_server import RedisServer, cluster, running

from agentkv.bench.dram import dram_contest
from agentkv.bench.fio import bytes_per_s
from agentkv.bench.lmcache_peer import LMCACHE, why_no_lmcache
from agentkv.bench.memory import BlockMemory
from agentkv.bench.raw_redis import RawRedis
from agentkv.bench.redis_tier import redis_contest
from agentkv.bench.rounds import BenchError, Contest, Mover, PeerError
from agentkv.bench.settings import BenchSettings
from agentkv.bench.ssd import check_room, ssd_contest
from agentkv.bench.vllm_parts import why_no_vllm
from agentkv.errors import ConfigError
from agentkv.tiers.disk.read_segment import read_table
from agentkv.tiers.redis.private_server import private_redis, redis_program
from agentkv.tiers.redis.url import RedisAccess, parse_address

BLOCK_BYTES = 64 << 10
SETTINGS = BenchSettings(size_bytes=2 << 20, block_sizes_bytes=(BLOCK_BYTES,))
NUM_BLOCKS = SETTINGS.num_blocks(BLOCK_BYTES)


def peer(contest: Contest, name: str) -> Mover:
    return next(each for each in contest.peers if each.name == name)


def move_twice(contest: Contest) -> None:
    """A second round must not find what the first has left."""
    for _ in range(2):
        for mover in (contest.ours, *contest.peers):
            assert mover.store() > 0 and mover.load() > 0


def test_the_dram_tiers_copies_and_memcpy() -> None:
    contest = dram_contest(SETTINGS, BLOCK_BYTES)
    assert [each.name for each in contest.peers] == ["memcpy"]
    move_twice(contest)
    contest.close()


def test_copies_that_bring_other_bytes_back_end_the_run() -> None:
    contest = dram_contest(SETTINGS, BLOCK_BYTES)
    contest.ours.store()
    contest.ours._copies._worker.copies._dram[0][3, 5] ^= 1  # type: ignore[attr-defined]
    with pytest.raises(BenchError, match="did not bring back"):
        contest.ours.load()
    contest.close()


def test_the_ssd_tier_fio_and_vllms_files(tmp_path: Path) -> None:
    contest = ssd_contest(SETTINGS, BLOCK_BYTES, tmp_path)
    assert [each.name for each in contest.peers] == ["fio", "vllm_fs"] and not contest.missing
    move_twice(contest)
    assert len(list((tmp_path / "vllm").rglob("*.bin"))) == NUM_BLOCKS, "one round's files"
    facts = {each.name: each.facts() for each in (contest.ours, *contest.peers)}
    assert len({each["direct_io"] for each in facts.values()}) == 1, "not all alike"
    assert f"--bs={BLOCK_BYTES}" in facts["fio"]["store_command"]
    assert "--rw=randread" in facts["fio"]["load_command"]
    contest.close()


def test_a_disk_that_brings_other_bytes_back_ends_the_run(tmp_path: Path) -> None:
    contest = ssd_contest(SETTINGS, BLOCK_BYTES, tmp_path)
    contest.ours.store()
    (file,) = (tmp_path / "agentkv").rglob("seg-*.kv")
    table = read_table(file, file.parent.parent.name)
    assert not isinstance(table, str)
    with file.open("r+b") as opened:
        opened.seek(table.shape.slot_offset(max(table.records)))
        opened.write(bytes(8))
    with pytest.raises(BenchError, match="checksum"):
        contest.ours.load()
    contest.close()


def test_a_peers_wrong_bytes_leave_it_out(tmp_path: Path) -> None:
    contest = ssd_contest(SETTINGS, BLOCK_BYTES, tmp_path)
    files = peer(contest, "vllm_fs")
    files.store()
    victim = next((tmp_path / "vllm").rglob("*.bin"))
    victim.write_bytes(bytes(BLOCK_BYTES))
    with pytest.raises(PeerError, match="other bytes"):
        files.load()
    contest.close()


def test_fio_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    contest = ssd_contest(SETTINGS, BLOCK_BYTES, tmp_path)
    assert contest.missing == {"fio": "fio is not installed"}
    contest.close()


@pytest.mark.parametrize("output", ["", "fio: no", '{"jobs": []}', '{"jobs": [{"read": {}}]}'])
def test_fios_output_that_cannot_be_read_leaves_it_out(output: str) -> None:
    with pytest.raises(PeerError):
        bytes_per_s(output, "read")


def test_a_bench_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are needed"):
        check_room(tmp_path, 1 << 60)


def test_the_redis_tier_and_bare_sockets_leave_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as server, contextlib.closing(server.client()) as client:
        client.set("mine", "x")
        contest = redis_contest(SETTINGS, BLOCK_BYTES, server.url, None)
        move_twice(contest)
        assert client.dbsize() > 2 * NUM_BLOCKS
        contest.close()
        left = [key for key in client.scan_iter() if not key.startswith(b"agentkv:1:")]
        assert left == [b"mine"]
        assert not client.keys("agentkv:1:*{*")
        assert "raw" not in contest.missing


def bare(server: RedisServer, *, password: str | None = None) -> RawRedis:
    source = BlockMemory.random(NUM_BLOCKS, BLOCK_BYTES, 1)
    target = BlockMemory(NUM_BLOCKS, BLOCK_BYTES)
    access = RedisAccess(password=password)
    address = parse_address(server.url)
    return RawRedis(address, access, source, target, num_connections=2, prefix="bench")


def test_bare_sockets_send_values_of_the_tiers_size_and_see_wrong_ones(tmp_path: Path) -> None:
    with running(tmp_path) as server, contextlib.closing(server.client()) as client:
        raw = bare(server)
        raw.store()
        keys = client.keys("bench:*")
        assert {client.strlen(key) for key in keys} == set(raw.facts()["value_bytes"])
        assert all(client.pttl(key) > 0 for key in keys)
        raw.load()
        client.set(keys[0], bytes(client.strlen(keys[0])))
        with pytest.raises(PeerError, match="other bytes"):
            raw.load()
        client.delete(keys[0])
        with pytest.raises(PeerError, match="broke"):
            raw.load()
        raw.close()


def test_bare_sockets_log_in_and_are_left_out_if_they_cannot(tmp_path: Path) -> None:
    with running(tmp_path, requirepass="a-secret") as server:
        bare(server, password="a-secret").close()
        with pytest.raises(PeerError) as caught:
            bare(server, password="wrong")
        assert "wrong" not in str(caught.value)


def test_a_server_that_is_not_there_ends_the_run() -> None:
    with pytest.raises(BenchError, match="cannot be used"):
        redis_contest(SETTINGS, BLOCK_BYTES, "redis://127.0.0.1:1", None)


def test_what_only_one_server_can_do_is_said(tmp_path: Path) -> None:
    with cluster(tmp_path) as servers:
        url = servers[0].url.replace("redis://", "redis+cluster://")
        contest = redis_contest(SETTINGS, BLOCK_BYTES, url, None)
        assert set(contest.missing) == {"raw", LMCACHE}
        assert contest.ours.store() > 0 and contest.ours.load() > 0
        contest.close()


def test_lmcache_is_measured_or_missing_with_a_reason() -> None:
    assert why_no_lmcache(parse_address("unix:///x")) is not None
    assert why_no_lmcache(parse_address("redis://h/3")) is not None


def test_a_private_server_ends_with_its_context(tmp_path: Path) -> None:
    program = redis_program()
    assert program is not None
    with private_redis(program, tmp_path) as url:
        redis_contest(SETTINGS, BLOCK_BYTES, url, None).close()
    with pytest.raises(BenchError):
        redis_contest(SETTINGS, BLOCK_BYTES, url, None)
    assert list(tmp_path.iterdir()) == []


def test_a_vllm_that_does_not_load_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_vllm() is None
    monkeypatch.setitem(sys.modules, "agentkv.connectors.copy_bench", None)
    assert "cannot be loaded" in str(why_no_vllm())
