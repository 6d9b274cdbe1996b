"""Several engines at once on a server that is mistreated: each load is right or a miss."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import redis
from kit.redis_rig import canary, entries, key, loaded, open_store
from kit.redis_server import RedisServer, running, wait_until

from agentkv.tiers.redis.store import RedisStore

_SECONDS = 10.0
_NUM_KEYS = 40
_BLOCK_BYTES = 150_000
_OPTIONS = {
    "block_bytes": _BLOCK_BYTES,
    "value_bytes": 60_000,
    "timeout_s": 0.3,
    "connect_timeout_s": 0.3,
    "call_timeout_s": 0.6,
}


def test_every_load_is_right_or_a_miss(tmp_path: Path) -> None:
    """A51, A53, A62, A76: kills, restarts, freezes, evictions, damage, clears; nothing is left."""
    with (
        running(tmp_path, maxmemory="12mb", maxmemory_policy="allkeys-random") as server,
        open_store(server.url, **_OPTIONS) as a,
        open_store(server.url, is_inner=True, **_OPTIONS) as b,
    ):
        has_ended = threading.Event()
        tally: list[bool] = []
        problems: list[BaseException] = []
        users = [
            threading.Thread(target=_use, args=(store, seed, has_ended, tally, problems))
            for seed, store in enumerate((a, a, b))
        ]
        for user in users:
            user.start()
        try:
            _mistreat(server, a, lambda: tally.count(True) > 100 and False in tally)
        finally:
            has_ended.set()
            for user in users:
                user.join(60)
        assert not any(user.is_alive() for user in users)
        assert problems == []
        assert tally.count(True) > 100 and False in tally
        server.client().config_set("maxmemory", "0")  # It evicts at random while it is full.
        for store in (a, b):
            wait_until(lambda store=store: _is_whole(store))


def _is_whole(store: RedisStore) -> bool:
    """A miss may still follow from what was done to the server; not for long."""
    stored = store.store(entries(range(3), _BLOCK_BYTES))
    return stored == [True] * 3 == loaded(store, range(3))


def _use(
    store: RedisStore,
    seed: int,
    has_ended: threading.Event,
    tally: list[bool],
    problems: list[BaseException],
) -> None:
    rng = np.random.default_rng(seed)
    try:
        while not has_ended.is_set():
            numbers = [int(number) for number in rng.integers(0, _NUM_KEYS, 4)]
            action = rng.random()
            if action < 0.4:
                store.store(entries(numbers, _BLOCK_BYTES))
            elif action < 0.9:
                tally.extend(loaded(store, numbers))
            else:
                store.contains([key(number) for number in numbers])
                store.touch([key(number) for number in numbers])
                store.delete([key(numbers[0])])
            if not store.is_available:
                time.sleep(0.01)
    except BaseException as problem:  # To be told by the test's own thread.
        problems.append(problem)


def _mistreat(server: RedisServer, store: RedisStore, is_enough: Callable[[], bool]) -> None:
    """For some seconds; on a slow machine until enough was loaded and missed."""
    rng = np.random.default_rng(7)
    until_s = time.monotonic() + _SECONDS
    step = 0
    while (now_s := time.monotonic()) < until_s or not (is_enough() or now_s > until_s + 120):
        time.sleep(0.15)
        step += 1
        if step % 12 == 0:
            server.kill()
            time.sleep(0.1)
            server.start()
        elif step % 12 == 6:
            server.freeze()
            time.sleep(0.5)
            server.thaw()
        elif step % 12 == 9:
            store.clear()
        else:
            with (
                contextlib.closing(server.client()) as client,
                contextlib.suppress(redis.RedisError),
            ):
                client.client_kill_filter(_type="normal", skipme=True)
                for name in client.keys("*{*")[:3]:
                    client.setrange(name, int(rng.integers(0, 50_000)), b"damage")


def test_the_canary_is_no_constant() -> None:
    """What the loads are compared with differs for each key."""
    assert len({canary(number, 100) for number in range(_NUM_KEYS)}) == _NUM_KEYS
