"""A router that builds an index from our KV events knows what each tier holds, whatever happens.

`EventIndex` is strict: it fails by itself where a block is stored twice or removed before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.control import signal, tell
from kit.kv_events import DRAM, REDIS, SSD, EventIndex, check, listen, outside
from kit.redis_server import RedisServer, running
from kit.tiers import blocks_in, crowd, look_on, parked, ssd, step_until, tier
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import OffloadingEventsTracker

from agentkv.connectors import kv_events

RigFactory = Callable[..., Rig]
GPU = ("GPU", None, None, 0)


def listening(make_rig: RigFactory, **fields: Any) -> tuple[Rig, EventIndex]:
    rig = make_rig(publishes_events=True, **fields)
    return rig, listen(rig)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path) as server:
        yield server


# --- what is said ---


@pytest.mark.parametrize("fields", [{}, {"is_async": True}, {"is_hybrid": True}])
def test_the_index_is_what_pool_dram_and_disk_hold(
    make_rig: RigFactory, tmp_path: Path, fields: dict[str, Any]
) -> None:
    rig, index = listening(make_rig, **ssd(tmp_path), **fields)
    agent = parked(rig)
    others = crowd(rig)
    agent.turn()
    others[0].turn()
    check(rig, index)
    assert index.at(SSD) and index.at(DRAM) and index.at(GPU)
    assert len(index.at(DRAM)) < len({e for m, e in index.stored if m == "CPU"}), "none evicted"


def test_dram_and_disk_say_of_a_block_what_the_pool_says(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig, index = listening(make_rig, **ssd(tmp_path))
    parked(rig, "waiting", num_blocks=6)
    look_on(rig)
    tokens: dict[Any, tuple[list[int], Any]] = {}
    for event in index.events:
        if getattr(event, "medium", None) == "GPU" and hasattr(event, "token_ids"):
            parent = event.parent_block_hash
            for i, block_hash in enumerate(event.block_hashes):
                tokens[block_hash] = (event.token_ids[16 * i : 16 * i + 16], parent)
                parent = block_hash
    assert index.at(SSD) and index.at(SSD) <= tokens.keys()
    for (medium, block_hash), event in index.stored.items():
        if medium != "GPU":
            assert (event.token_ids, event.parent_block_hash) == tokens[block_hash]
            assert (event.block_size, event.session_id) == (16, "waiting")
            assert event.kv_cache_spec_kind == "full_attention"


def test_a_session_that_only_a_tag_names_is_named_and_an_inferred_one_is_not(
    make_rig: RigFactory,
) -> None:
    rig, index = listening(make_rig)
    rig.run("tagged", prompt(1, blocks(3)), tag={"session_id": "run-7"})
    rig.run("nobody", prompt(2, blocks(3)))
    named = {outside(rig.hashes(prompt(n, blocks(3)))[0]): n == 1 for n in (1, 2)}
    for block_hash, is_named in named.items():
        for medium in ("GPU", "CPU"):
            assert index.stored[medium, block_hash].session_id == ("run-7" if is_named else None)


def test_a_name_that_is_no_clients_to_give_is_given_to_no_block(make_rig: RigFactory) -> None:
    rig, index = listening(make_rig)
    rig.run("named", prompt(1, blocks(3)), session="inferred-9")
    for medium in ("GPU", "CPU"):
        event = index.stored[medium, outside(rig.hashes(prompt(1, blocks(3)))[0])]
        assert event.session_id is None


def test_a_block_that_vllm_itself_describes_costs_no_other_its_event(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does the partial tails of recurrent layers."""
    build = OffloadingEventsTracker._build_event_metadata
    monkeypatch.setattr(kv_events.NamingTracker, "_build_event_metadata", build)
    rig, index = listening(make_rig)
    rig.run("r", prompt(1, blocks(3)), session="run-7")
    event = index.stored["CPU", outside(rig.hashes(prompt(1, blocks(3)))[0])]
    assert len(event.token_ids) == 16
    check(rig, index)
    assert not rig.counter("agentkv:faults")


def test_what_comes_back_without_a_request_has_its_session(make_rig: RigFactory) -> None:
    rig, index = listening(make_rig, policy="always_swap", extra={"min_load_tokens": 0})
    agent = Agent(rig, "waiting", 1, 6)
    agent.turn(tag={"tool": "bash", "expected_wait_s": 1000.0})
    rig.drop_gpu_cache()
    index.stored.clear()
    signal(rig, "resume", "waiting")
    rig.settle()
    assert rig.cached_blocks(agent.context) == 6
    event = index.stored["GPU", outside(rig.hashes(agent.context)[0])]
    assert event.session_id == "waiting" and event.token_ids[:16] == agent.context[:16]


# --- what is lost ---


def test_a_reset_of_the_pool_alone_is_followed_by_what_dram_still_has(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "_MAX_TOLD_AGAIN", 4)
    rig, index = listening(make_rig)
    Agent(rig, "agent", 1, 10).turn()
    assert rig.scheduler.reset_prefix_cache()
    tell(rig)
    rig.settle()
    assert index.at(GPU) == set() and len(index.at(DRAM)) == 4, "told in small parts"
    check(rig, index)
    assert len(index.at(DRAM)) == 10
    event = index.stored["CPU", next(iter(index.at(DRAM)))]
    assert len(event.token_ids) == 16 and event.session_id == "agent"


@pytest.mark.parametrize("is_running", [False, True])
def test_a_reset_with_the_connector_leaves_nothing(
    make_rig: RigFactory, tmp_path: Path, is_running: bool
) -> None:
    """While a turn runs vLLM does not reset the pool, says nothing, and yet empties DRAM."""
    rig, index = listening(make_rig, **ssd(tmp_path))
    parked(rig)
    assert index.at(DRAM) and index.at(SSD)
    if is_running:
        rig.add("busy", prompt(2, blocks(3)), max_tokens=30)
        rig.step(2)
    assert rig.scheduler.reset_prefix_cache(reset_connector=True) is not is_running
    tell(rig)
    rig.step()
    assert index.at(SSD) == set() and len(index.at(DRAM)) == 0
    rig.settle()
    parked(rig, "after", seed=9)
    look_on(rig)
    assert len(index.at(SSD)) == 10, "stored anew, under names that hide the key"
    tier(rig).store.clear()
    look_on(rig, 5)
    assert index.at(SSD) == set()


def test_tiers_that_outlive_a_reset_are_told_again(make_rig: RigFactory, tmp_path: Path) -> None:
    rig, index = listening(make_rig, **ssd(tmp_path, keep_tiers_on_reset=True))
    parked(rig)
    look_on(rig)
    kept = index.at(SSD)
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    check(rig, index)
    assert index.at(SSD) == kept and index.at(DRAM) == set()


def test_a_damaged_block_is_removed(make_rig: RigFactory) -> None:
    rig, index = listening(make_rig)
    agent = Agent(rig, "agent", 1, 8)
    agent.turn()
    rig.drop_gpu_cache()
    rig.flip_dram_byte(agent.context, 3)
    damaged = outside(rig.hashes(agent.context)[3])
    check(rig, index)
    assert damaged in index.at(DRAM)
    request_id = agent.arrive()
    rig.step_until(lambda: rig.counter("agentkv:load_failures") > 0)
    assert damaged not in index.at(DRAM)
    rig.settle()
    rig.check_answer(request_id)
    check(rig, index)


def test_a_disk_that_breaks_is_gone_and_back_with_all_it_has(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, index = listening(make_rig, **ssd(tmp_path))
    parked(rig)
    look_on(rig)
    on_disk = index.at(SSD)
    with monkeypatch.context() as patch:
        patch.setattr(type(tier(rig).store), "is_available", property(lambda store: False))
        look_on(rig, 3)
        assert on_disk and index.at(SSD) == set()
    look_on(rig, 3)
    assert index.at(SSD) == on_disk
    check(rig, index)


def test_what_a_full_disk_evicts_is_removed(make_rig: RigFactory, tmp_path: Path) -> None:
    fields = ssd(tmp_path)
    fields["extra"]["ssd"]["size_bytes"] = "1MiB"
    rig, index = listening(make_rig, **fields)
    for i in range(20):
        parked(rig, f"agent{i}", seed=i, num_blocks=18)
    check(rig, index)
    ever = {block_hash for medium, block_hash in index.stored if medium == "STORAGE"}
    assert len(ever) > len(index.at(SSD)) > 50


def test_what_is_evicted_and_stored_again_at_once_keeps_its_tokens(make_rig: RigFactory) -> None:
    """One step's first turn pushes out of DRAM what its second turn stores again."""
    extra = {"protect_arrived_turns": False, "dram": {"size_bytes": "1MiB", "exclusive": False}}
    rig, index = listening(make_rig, dram_blocks=12, extra=extra)
    old, other, new = (Agent(rig, f"agent{i}", i, 6) for i in range(3))
    old.turn()
    other.turn()
    index.stored.clear()
    rig.script.store_delay_steps = 3
    new.arrive()
    old.arrive()
    undecided: set[Any] = set()
    while rig.scheduler.has_requests():
        rig.step()
        undecided |= rig.side.below.events._dram._undecided
    assert undecided, "nothing was stored again while it was said to be there"
    check(rig, index)
    told = [event for (medium, _), event in index.stored.items() if medium == "CPU"]
    assert told and all(len(event.token_ids) == 16 for event in told)


# --- restarts, other engines ---


@pytest.mark.parametrize("is_prefetch", [False, True])
def test_a_restart_tells_what_the_disk_has_and_its_tokens_when_it_comes_up(
    make_rig: RigFactory, tmp_path: Path, is_prefetch: bool
) -> None:
    first = make_rig(**ssd(tmp_path))
    agent = parked(first)
    first.clean()
    first.connector.shutdown()
    rig, index = listening(make_rig, **ssd(tmp_path))
    again = Agent(rig, "waiting", 1, 10)
    again.context = list(agent.context)
    tell(rig)
    rig.settle()
    hashes = [outside(block_hash) for block_hash in rig.hashes(agent.context)[:10]]
    assert index.at(SSD) >= set(hashes)
    assert index.stored["STORAGE", hashes[0]].token_ids == []
    again.turn(tag={"tool": "human", "expected_wait_s": 1000.0})
    event = index.stored["CPU", hashes[3]]
    assert event.token_ids == again.context[48:64] and event.session_id == "waiting"
    if is_prefetch:
        crowd(rig)
        index.stored.clear()
        signal(rig, "resume", "waiting")
        step_until(rig, lambda: rig.cached_blocks(again.context) >= 10)
        assert index.stored["CPU", hashes[3]].token_ids == again.context[48:64]
    check(rig, index)


def test_redis_says_remote_and_what_it_lost_when_that_is_found_out(
    make_rig: RigFactory, redis: RedisServer
) -> None:
    extra = {"min_load_tokens": 0, "redis": {"url": redis.url}}
    rig, index = listening(make_rig, pool_blocks=40, dram_blocks=48, extra=extra)
    agent = parked(rig)
    look_on(rig)
    check(rig, index)
    assert len(index.at(REDIS)) == 10 == blocks_in(rig, agent)
    assert index.stored["STORAGE", next(iter(index.at(REDIS)))].session_id == "waiting"
    crowd(rig)
    redis.client().flushall()
    agent.turn()
    check(rig, index)
    assert outside(rig.hashes(agent.context)[0]) not in index.at(REDIS)


# --- off ---


def test_without_events_nothing_is_noted(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    parked(rig)
    assert rig.side.below.events is None and rig.primary.events is None
    assert tier(rig).store._index._lost is None
    assert not rig.connector.connector_scheduler._events_tracker._pending_event_metadata
    assert list(rig.connector.take_events()) == []


def test_what_is_kept_for_events_is_bounded_by_what_the_tiers_hold(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig, index = listening(make_rig, **ssd(tmp_path))
    for i in range(12):
        crowd(rig, seed=100 * i, rounds=2)
    check(rig, index)
    events = rig.side.below.events
    tracker = rig.connector.connector_scheduler._events_tracker
    assert len(tracker._pending_event_metadata) <= rig.config.dram_blocks
    assert len(events._dram._said) <= rig.config.dram_blocks
    assert sum(len(news._to_tell) for news in (events._dram, *events._below)) == 0
