"""KV of long pauses in servers that other engines share: a real Redis, LMCache's real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import Rig
from kit.control import signal
from kit.lmcache_server import Server, lmcache_python
from kit.redis_server import RedisServer, running
from kit.tiers import blocks_in, crowd, parked, step_until, tier

RigFactory = Callable[..., Rig]
COMMON = {"pool_blocks": 40, "dram_blocks": 48}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path) as server:
        yield server


@pytest.fixture(params=["redis", "lmcache"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The tier's settings."""
    if request.param == "redis":
        with running(tmp_path) as server:
            yield {"redis": {"url": server.url}}
        return
    lmcache_python()
    server = Server(tmp_path / "lmcache.log")
    server.start()
    try:
        yield {"lmcache": {"url": f"lm://127.0.0.1:{server.port}"}}
    finally:
        server.kill()


def rig_with(make_rig: RigFactory, settings: dict[str, Any], **fields: Any) -> Rig:
    return make_rig(**{**COMMON, **fields, "extra": {"min_load_tokens": 0, **settings}})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_parked_session_comes_back_exactly(
    make_rig: RigFactory, settings: dict[str, Any], is_async: bool
) -> None:
    rig = rig_with(make_rig, settings, is_async=is_async)
    agent = parked(rig)
    crowd(rig)
    assert rig.dram_blocks(agent.context) == 0
    assert agent.turn().dram_hit_tokens == 10 * 16
    assert rig.counter("agentkv:promoted_blocks", next(iter(settings)), "turn") == 10


def test_another_engine_finds_what_one_has_parked(
    make_rig: RigFactory, settings: dict[str, Any]
) -> None:
    first = rig_with(make_rig, settings)
    agent = parked(first)
    second = rig_with(make_rig, settings)
    result = second.run("again", agent.context, session="waiting")
    second.check_answer("again")
    assert result.dram_hit_tokens == 10 * 16


def test_a_dead_server_is_a_miss_and_comes_back_by_itself(
    make_rig: RigFactory, redis: RedisServer
) -> None:
    rig = rig_with(make_rig, {"redis": {"url": redis.url}, "load_timeout_s": 1.0})
    agent = parked(rig)
    crowd(rig)
    redis.kill()
    assert agent.turn().dram_hit_tokens == 0
    step_until(rig, lambda: not tier(rig).is_available)
    redis.start()
    step_until(rig, lambda: tier(rig).is_available)
    again = parked(rig, "again", seed=7)
    crowd(rig, seed=900)
    assert again.turn().dram_hit_tokens == 10 * 16


def test_a_frozen_server_stops_no_step(make_rig: RigFactory, redis: RedisServer) -> None:
    rig = rig_with(make_rig, {"redis": {"url": redis.url}, "load_timeout_s": 0.5})
    agent = parked(rig)
    crowd(rig)
    redis.freeze()
    rig.has_stuck_tier = True
    try:
        assert agent.turn().dram_hit_tokens == 0  # By the engine's own clock, after half a second.
        assert rig.counter("agentkv:load_timeouts") >= 1
        other = crowd(rig, seed=900, rounds=1)[0]
        assert other.turn().gpu_hit_tokens
    finally:
        redis.thaw()
        rig.has_stuck_tier = False


def test_the_end_of_a_session_takes_its_entries_away(
    make_rig: RigFactory, redis: RedisServer
) -> None:
    rig = rig_with(make_rig, {"redis": {"url": redis.url}})
    agent = parked(rig)
    assert blocks_in(rig, agent) == 10
    signal(rig, "end", "waiting")
    client = redis.client()
    step_until(rig, lambda: not list(client.scan_iter("agentkv:1:*{*")))
