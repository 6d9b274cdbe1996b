"""Public bug reports about what a tier below DRAM promises, and what of it comes true.

Each test is named after its report in `tests/BUG_REPORTS.md`. Disks and servers are real; the
runner compares every element that a turn reads with its canary.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kit import Agent, Rig, canary
from kit.canary import CanaryError
from kit.control import signal
from kit.redis_server import RedisServer, running
from kit.tiers import HUMAN, blocks_in, crowd, parked, ssd, step_until, tier
from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from agentkv.tiers.base import Entry

RigFactory = Callable[..., Rig]
Load = Callable[[Sequence[Entry]], list[bool]]
COMMON = {"pool_blocks": 40, "dram_blocks": 48}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path) as server:
        yield server


def over_redis(url: str, **extra: Any) -> dict[str, Any]:
    """Rig fields: DRAM, and a server below it."""
    return {**COMMON, "extra": {"min_load_tokens": 0, "redis": {"url": url}, **extra}}


@pytest.fixture(params=["ssd", "redis"])
def below(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Rig fields with a tier below DRAM of each kind."""
    if request.param == "ssd":
        yield ssd(tmp_path)
        return
    with running(tmp_path) as server:
        yield over_redis(server.url)


def more(fields: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {**fields, "extra": {**fields["extra"], **extra}}


def change_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the same tokens give other KV, as after an update of the weights in place."""
    mix = canary._mix
    monkeypatch.setattr(canary, "_mix", lambda value: mix(value ^ 0xA5A5))


# --- A08, A09: resets ---


def test_a08_after_an_update_of_the_weights_no_tier_serves_what_was_before(
    make_rig: RigFactory, below: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**below)
    agent = parked(rig)
    assert min(rig.cached_blocks(agent.context), rig.dram_blocks(agent.context)) >= 10
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    change_weights(monkeypatch)
    result = agent.turn(tag=HUMAN)
    assert (result.gpu_hit_tokens, result.dram_hit_tokens) == (0, 0)
    step_until(rig, lambda: blocks_in(rig, agent) >= 10)
    crowd(rig)
    assert agent.turn().dram_hit_tokens >= 10 * 16, "and what is stored since is served"


def test_a08_without_the_fence_the_canary_finds_old_kv(
    make_rig: RigFactory, below: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**more(below, keep_tiers_on_reset=True))
    rig.is_spoilt = True
    agent = parked(rig)
    rig.scheduler.reset_prefix_cache(reset_connector=True)
    change_weights(monkeypatch)
    with pytest.raises(CanaryError):
        agent.turn()


def test_a08_a_store_under_way_does_not_land_under_the_new_weights(
    make_rig: RigFactory, below: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**below)
    may_move = threading.Event()
    store, pool = tier(rig).store, tier(rig)._pool
    original, wait_idle = store.store, pool.wait_idle

    def held(entries: Sequence[Entry]) -> list[bool]:
        may_move.wait(600.0)
        return original(entries)

    def let_go_and_wait() -> None:
        may_move.set()
        wait_idle()

    monkeypatch.setattr(store, "store", held)
    monkeypatch.setattr(pool, "wait_idle", let_go_and_wait)
    rig.has_stuck_tier = True
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=HUMAN)
    step_until(rig, lambda: rig.counter("agentkv:demoted_blocks") > 0)
    assert not may_move.is_set(), "the store is under way"
    rig.scheduler.reset_prefix_cache(reset_connector=True)
    rig.has_stuck_tier = False
    change_weights(monkeypatch)
    assert blocks_in(rig, agent) == 0
    assert agent.turn().dram_hit_tokens == 0


def test_a09_a_reset_may_keep_the_tiers_below(make_rig: RigFactory, below: dict[str, Any]) -> None:
    rig = make_rig(**more(below, keep_tiers_on_reset=True))
    agent = parked(rig)
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    assert rig.cached_blocks(agent.context) == rig.dram_blocks(agent.context) == 0
    result = agent.turn()
    assert (result.gpu_hit_tokens, result.dram_hit_tokens) == (0, 10 * 16)


# --- A34, A36, A62, A63, A79: promised, and not there ---


def before_load(rig: Rig, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something happens after the look-up has promised blocks, and before the first is read."""
    store = tier(rig).store
    original: Load = store.load
    has_acted = threading.Event()

    def load(entries: Sequence[Entry]) -> list[bool]:
        if not has_acted.is_set():
            act()
            has_acted.set()
        return original(entries)

    monkeypatch.setattr(store, "load", load)


def keys_in(rig: Rig, agent: Agent) -> list[bytes]:
    """The names under which the tier has the agent's blocks, root first."""
    return [tier(rig).name_of(OffloadKey(h + b"\0" * 4)) for h in rig.hashes(agent.context)]


@pytest.mark.parametrize("lost", [(4, 5), (4,), (0,), (0, 1, 2, 3, 4, 5)])
def test_a34_what_is_promised_and_gone_is_computed_again(
    make_rig: RigFactory,
    below: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    lost: tuple[int, ...],
) -> None:
    rig = make_rig(**below)
    agent = parked(rig, num_blocks=6)
    crowd(rig)
    gone = [keys_in(rig, agent)[block] for block in lost]
    before_load(rig, monkeypatch, lambda: tier(rig).store.delete(gone))
    result = agent.turn()
    assert rig.counter("agentkv:promoted_blocks", tier(rig).tier_type, "turn") == 6
    assert result.dram_hit_tokens == lost[0] * 16, "what comes before it is kept"
    again = agent.turn()
    assert again.gpu_hit_tokens and again.gpu_hit_tokens >= 6 * 16


@pytest.mark.parametrize("who", ["turn", "prefetch"])
def test_a62_an_entry_deleted_between_question_and_load_is_a_miss(
    make_rig: RigFactory, below: dict[str, Any], monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    rig = make_rig(**below)
    agent = parked(rig)
    crowd(rig)
    gone = keys_in(rig, agent)
    before_load(rig, monkeypatch, lambda: tier(rig).store.delete(gone))
    if who == "prefetch":
        signal(rig, "resume", agent.name)
        promoted = ("agentkv:promoted_blocks", tier(rig).tier_type, "prefetch")
        step_until(rig, lambda: rig.counter(*promoted) == 10)
    assert agent.turn().dram_hit_tokens == 0
    assert rig.counter("agentkv:promoted_blocks") == 10, "not asked for again"


def test_a36_with_dram_full_of_what_is_in_use_nothing_is_promised(
    make_rig: RigFactory, below: dict[str, Any]
) -> None:
    rig = make_rig(**below)
    agent = parked(rig)
    crowd(rig)
    assert rig.dram_blocks(agent.context) == 0
    manager = rig.connector.connector_scheduler.manager
    assert manager.num_free_chunks == 0
    pinned, context = list(rig.dram.chunks), ReqContext(req_id="pinned")
    manager.primary_tier.prepare_read(pinned, context)
    try:
        result = agent.turn()
        assert result.dram_hit_tokens == 0
        assert rig.counter("agentkv:promoted_blocks") == 0
    finally:
        manager.primary_tier.complete_read(pinned, context)
    crowd(rig, seed=900)
    assert agent.turn().dram_hit_tokens == 10 * 16, "with room in DRAM it comes up"


def test_a63_files_that_somebody_deletes_are_misses_and_written_anew(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig = make_rig(**ssd(tmp_path / "kv"))
    agent = parked(rig)
    crowd(rig)
    shutil.rmtree(tmp_path / "kv")
    assert agent.turn(tag=HUMAN).dram_hit_tokens == 0
    step_until(rig, lambda: tier(rig).store.usage().num_entries >= 10)
    rig.clock.advance(40.0)
    step_until(rig, lambda: blocks_in(rig, agent) >= 10)
    crowd(rig, seed=900)
    result = agent.turn()
    # The crowd may have left a few of its blocks in the pool.
    assert result.gpu_hit_tokens + result.dram_hit_tokens >= 10 * 16
    assert result.dram_hit_tokens > 0


def test_a79_what_the_server_evicted_is_learnt(make_rig: RigFactory, redis: RedisServer) -> None:
    rig = make_rig(**over_redis(redis.url))
    agent = parked(rig)
    crowd(rig)
    client = redis.client()
    names = sorted(client.scan_iter("agentkv:1:*{*"))
    assert len(names) >= 10
    assert blocks_in(rig, agent) == 10
    kept = {name for i, name in enumerate(names) if i % 2}
    client.delete(*(name for name in names if name not in kept))
    is_there = tier(rig).store.contains(keys_in(rig, agent))
    assert 0 < is_there.count(True) < 10
    assert agent.turn().dram_hit_tokens == 16 * is_there.index(False)
    step_until(rig, lambda: rig.counter("agentkv:tier_failures", "redis", "missing") > 0)
    held = [tier(rig).holds(OffloadKey(h + b"\0" * 4)) for h in rig.hashes(agent.context)][:10]
    assert held == is_there[:10], "what is promised now is there"


# --- A64, A67, A72, A74: restarts and late comers ---


def test_a64_five_restarts_find_the_kv_and_write_nothing_anew(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    prompt = list(agent.context)
    sizes: list[tuple[int, int]] = []
    for _ in range(5):
        rig.connector.shutdown()
        rig.is_spoilt = True
        rig = make_rig(**ssd(tmp_path))
        result = rig.run("again", prompt, session="waiting", tag=HUMAN)
        rig.check_answer("again")
        assert result.dram_hit_tokens == 10 * 16
        step_until(rig, lambda rig=rig: not rig.connector.connector_scheduler.manager._jobs)
        files = [file.stat().st_blocks for file in tmp_path.rglob("*") if file.is_file()]
        sizes.append((tier(rig).store.usage().num_entries, sum(files)))
    assert len(set(sizes)) == 1 and sizes[0][0] == 10


def test_a67_what_another_engine_stores_after_a_miss_is_found(
    make_rig: RigFactory, redis: RedisServer
) -> None:
    first = make_rig(**over_redis(redis.url, keep_tiers_on_reset=True))
    second = make_rig(**over_redis(redis.url))
    agent = Agent(second, "waiting", 1, 10)
    assert first.run("early", agent.context).dram_hit_tokens == 0
    agent.turn(tag=HUMAN)
    step_until(second, lambda: blocks_in(second, agent) >= 10)
    first.scheduler.reset_prefix_cache(reset_connector=True)
    assert first.run("late", agent.context).dram_hit_tokens == 10 * 16
    first.check_answer("late")


def test_a72_by_default_the_disk_is_used(make_rig: RigFactory, tmp_path: Path) -> None:
    """No setting but where the disk is; others take DRAM while a session of 30 blocks waits."""
    disk = {"path": str(tmp_path / "kv"), "min_free_bytes": "1MiB"}
    rig = make_rig(pool_blocks=60, dram_blocks=64, extra={"ssd": disk})
    agent = parked(rig, num_blocks=30)
    crowd(rig)
    assert rig.cached_blocks(agent.context) == rig.dram_blocks(agent.context) == 0
    assert agent.turn().dram_hit_tokens == 30 * 16
    assert rig.counter("agentkv:promoted_blocks", "ssd", "turn") == 30


def test_a74_an_engine_starts_without_its_server_and_uses_it_once_it_is_there(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path)
    rig = make_rig(**over_redis(server.url))
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=HUMAN)
    crowd(rig)
    num_steps = rig.num_steps
    assert agent.turn(tag=HUMAN).dram_hit_tokens == 0
    assert rig.num_steps - num_steps < 20, "no step waits for it"
    assert not tier(rig).is_available
    server.start()
    try:
        step_until(rig, lambda: tier(rig).is_available)
        other = parked(rig, "other", seed=7)
        crowd(rig, seed=900)
        assert other.turn().dram_hit_tokens == 10 * 16
    finally:
        server.kill()


def test_a73_no_secret_is_in_what_an_engine_says_or_stores(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    secret = "hunter2-s3cret"
    monkeypatch.setenv("AGENTKV_REDIS_PASSWORD", secret)
    with running(tmp_path, requirepass=secret) as server:
        rig = make_rig(**over_redis(server.url))
        agent = parked(rig)
        assert tier(rig).is_available and blocks_in(rig, agent) == 10
        names = list(server.client(password=secret).scan_iter("*"))
    assert names and not any(secret.encode() in name for name in names)
    assert secret not in repr(rig.scheduler.vllm_config)
    assert secret not in caplog.text
    assert os.environ["AGENTKV_REDIS_PASSWORD"] == secret


@pytest.mark.parametrize(("max_step_tokens", "blocks_per_chunk"), [(2048, 1), (64, 1), (2048, 4)])
def test_a72_a_context_larger_than_dram_goes_down_in_parts_and_its_beginning_comes_up(
    make_rig: RigFactory, tmp_path: Path, max_step_tokens: int, blocks_per_chunk: int
) -> None:
    disk = {"path": str(tmp_path / "kv"), "min_free_bytes": "1MiB"}
    extra: dict[str, Any] = {"ssd": disk, "prefetch": {"enabled": False}}
    extra["offloading"] = {"blocks_per_chunk": blocks_per_chunk}
    rig = make_rig(pool_blocks=130, dram_blocks=8, max_step_tokens=max_step_tokens, extra=extra)
    agent = Agent(rig, "human", 1, 100)
    agent.turn(tag=HUMAN)
    step_until(rig, lambda: blocks_in(rig, agent) >= 96 // blocks_per_chunk)
    crowd(rig)
    assert rig.cached_blocks(agent.context) == 0
    assert agent.turn().dram_hit_tokens == 8 * 16
    assert rig.counter("agentkv:promoted_blocks", "ssd", "turn") == 8 / blocks_per_chunk
    assert rig.counter("agentkv:load_timeouts") == 0
