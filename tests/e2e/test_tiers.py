"""KV that comes back from a disk or a Redis server gives the tokens of a stock vLLM: in the same
process, after a restart, on a second engine. With weights that differ it is not found at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.redis_server import running

from agentkv.demo.checkpoint import write_checkpoint
from agentkv.tiers.base import Entry

from .checks import assert_exact, talk
from .conftest import SHAPE, StartEngine
from .engine import BLOCK_TOKENS, Ask, Engine, chain, prompt_of

NUM_SESSIONS = 4
NAMES = [f"s{i}" for i in range(NUM_SESSIONS)]
TALK = {"num_sessions": NUM_SESSIONS, "concurrency": 2}


@pytest.fixture(params=["ssd", "redis"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a tier below DRAM, on a real disk or a real server; every pause is parked."""
    common = {"park_after_s": 0, "policy": "always_swap", "dram": {"size_bytes": "1MiB"}}
    if request.param == "ssd":
        disk = {"path": str(tmp_path / "kv"), "size_bytes": "64MiB", "min_free_bytes": "1MiB"}
        yield {**common, "ssd": disk}
        return
    with running(tmp_path) as server:
        yield {**common, "redis": {"url": server.url}}


def park_all(engine: Engine, _: int = 0) -> None:
    """Until all blocks of the sessions that talk are below DRAM."""
    [tier] = engine.connector.scheduler.manager.tiers
    side = engine.connector._side
    assert side is not None
    sessions = [s for s in side.controller.sessions if s.key.name in NAMES]
    deadline_s = time.monotonic() + 120.0
    while not all(s.pause is None or s.pause.parked_in for s in sessions):
        assert time.monotonic() < deadline_s, [s.pause for s in sessions]
        engine.signal("heartbeat", sessions[0].key.name)
        time.sleep(0.01)
    assert tier.is_available


def forget_above(engine: Engine, turn: int = 0) -> None:
    """Other sessions take the pool and all of DRAM."""
    park_all(engine)
    seeds = range(7000 + 100 * turn, 7008 + 100 * turn)
    engine.run([Ask(f"other{seed}", prompt_of(seed, 600), 2) for seed in seeds])
    engine.forget_pool()


def came_from(engine: Engine, name: str) -> list[int]:
    return [record["promoted_tokens"].get(name, 0) for record in engine.ledger("resume")]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 11}])
def test_a_parked_session_resumes_exactly(
    base: Engine, start: StartEngine, tier: dict[str, Any], sampling: dict[str, Any]
) -> None:
    engine = start(tier)
    fields = {**TALK, "num_turns": 3, "sampling": sampling}
    want = talk(base, **fields)
    got = talk(engine, **fields, between=forget_above, follow=want)
    assert_exact(want, got, is_sampled=bool(sampling))
    name = engine.connector.scheduler.manager.tiers[0].tier_type
    assert sum(tokens >= 192 for tokens in came_from(engine, name)) >= 6


def test_after_a_restart_and_on_a_second_engine_the_kv_is_found(
    base: Engine, start: StartEngine, tier: dict[str, Any]
) -> None:
    first, asks, want = told(base, start, tier)
    first.close()
    second = start(tier)
    got = second.run(asks)
    assert_exact(want, got)
    assert all(answer.cached_tokens >= 192 for answer in got.values())


def test_two_engines_share_a_redis(base: Engine, start: StartEngine, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        settings = {"park_after_s": 0, "redis": {"url": server.url}}
        first, asks, want = told(base, start, settings)
        second = start(settings)  # The first goes on running.
        got = second.run(asks)
        assert_exact(want, got)
        assert all(answer.cached_tokens >= 192 for answer in got.values())
        assert first.run(asks).keys() == got.keys()


def told(
    base: Engine, start: StartEngine, settings: dict[str, Any]
) -> tuple[Engine, list[Ask], dict[str, Any]]:
    """An engine that has parked some sessions; their next turns, and the right answers to them."""
    engine = start(settings)
    want = talk(base, **TALK, num_turns=1)
    talk(engine, **TALK, num_turns=1, between=park_all)
    asks = [
        Ask(
            f"next{s}",
            chain(prompt_of(s, 200), want[f"s{s}-t0"].tokens, prompt_of(900 + s, 40)),
            session=f"s{s}",
        )
        for s in range(NUM_SESSIONS)
    ]
    return engine, asks, base.run(asks)


def test_other_weights_under_the_same_path_find_nothing(
    base: Engine,
    start: StartEngine,
    tier: dict[str, Any],
    tmp_path: Path,
    engine_lock: None,
) -> None:
    first, asks, _ = told(base, start, tier)
    first.close()
    folder = tmp_path / "model"
    texts = ["call the tool and run the tests again"] * 10
    write_checkpoint(folder, texts, seed=1, shape=SHAPE)
    stock = Engine(folder, None, num_blocks=200)
    want = stock.run(asks)
    stock.close()
    other = Engine(folder, tier, num_blocks=40)
    try:
        got = other.run(asks)
        assert_exact(want, got)
        assert all(answer.cached_tokens == 0 for answer in got.values())
    finally:
        other.close()


def test_a_wrong_byte_from_the_tier_would_show(
    base: Engine, start: StartEngine, tier: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: with a tier that is believed, one wrong number changes the answer."""
    engine, asks, want = told(base, start, tier)
    forget_above(engine)
    store = engine.connector.scheduler.manager.tiers[0].store
    original: Callable[[list[Entry]], list[bool]] = store.load

    def load_damaged(entries: list[Entry]) -> list[bool]:
        results = original(entries)
        for entry in entries:
            entry.data[3::64] = bytes(x ^ 0x40 for x in entry.data[3::64])
        return results

    monkeypatch.setattr(store, "load", load_damaged)
    with pytest.raises(AssertionError):
        assert_exact(want, engine.run(asks))


def test_prefetch_brings_it_up_to_the_pool(
    base: Engine, start: StartEngine, tier: dict[str, Any]
) -> None:
    engine, asks, want = told(base, start, tier)
    forget_above(engine)
    deadline_s = time.monotonic() + 120.0
    for ask in asks[:1]:
        loaded, prefetched = engine.loaded_blocks, engine.count("agentkv:prefetched_tokens")
        begun = 0.0
        while begun < 192 or engine.loaded_blocks < loaded + begun / BLOCK_TOKENS:
            begun = engine.count("agentkv:prefetched_tokens") - prefetched
            engine.signal("resume", str(ask.session))
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        loaded = engine.loaded_blocks
        assert_exact({ask.name: want[ask.name]}, {ask.name: engine.ask(ask)})
        assert engine.loaded_blocks == loaded, "found in the pool"
