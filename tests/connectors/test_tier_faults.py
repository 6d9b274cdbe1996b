"""A tier below DRAM that hangs, refuses, is reset or fenced: turns go on, with the right tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kit import Agent, Rig
from kit.tiers import HUMAN, blocks_in, crowd, look_on, parked, ssd, step_until, tier
from vllm.lora.request import LoRARequest

from agentkv.tiers.base import Entry

RigFactory = Callable[..., Rig]


def test_a_stalled_device_stops_no_step_and_the_turn_computes(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**ssd(tmp_path, load_timeout_s=0.5))
    agent = parked(rig)
    crowd(rig)
    store = tier(rig).store
    is_moving = threading.Event()
    load = store.load
    rig.has_stuck_tier = True

    def stalled(entries: Sequence[Entry]) -> list[bool]:
        is_moving.wait(600.0)
        return load(entries)

    monkeypatch.setattr(store, "load", stalled)
    request_id = agent.arrive()
    other = Agent(rig, "other", 77, 5)
    other_id = other.arrive()
    rig.step_until(lambda: rig.results[other_id].is_finished)  # The others do not wait for it.
    rig.step_until(lambda: rig.results[request_id].is_finished)
    assert rig.counter("agentkv:load_timeouts") == 1
    is_moving.set()
    rig.has_stuck_tier = False
    rig.settle()
    rig.check_answer(request_id)
    rig.check_answer(other_id)


def test_a_tier_that_refuses_all_costs_only_the_copy(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**ssd(tmp_path))
    monkeypatch.setattr(tier(rig).store, "store", lambda entries: [False] * len(entries))
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=HUMAN)
    look_on(rig, 100)
    assert blocks_in(rig, agent) == 0
    crowd(rig)
    assert agent.turn().dram_hit_tokens == 0
    # It is asked again now and then, not at every step.
    assert rig.counter("agentkv:demoted_blocks", "ssd", "wait") < 10 * 12


def test_a_failed_load_is_not_tried_again_at_once(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    crowd(rig)
    calls: list[int] = []

    def failing(entries: Sequence[Entry]) -> list[bool]:
        calls.append(len(entries))
        return [False] * len(entries)

    monkeypatch.setattr(tier(rig).store, "load", failing)
    assert agent.turn().dram_hit_tokens == 0
    assert sum(calls) == 10


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_reset_with_the_connector_fences_the_tier_unless_told(
    make_rig: RigFactory, tmp_path: Path, is_kept: bool
) -> None:
    rig = make_rig(**ssd(tmp_path, keep_tiers_on_reset=is_kept))
    agent = parked(rig)
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    assert blocks_in(rig, agent) == (10 if is_kept else 0)
    result = agent.turn()
    assert result.dram_hit_tokens == (10 * 16 if is_kept else 0)


def test_what_is_stored_after_a_fence_is_found_until_the_next(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig = make_rig(**ssd(tmp_path))
    rig.scheduler.reset_prefix_cache(reset_connector=True)
    agent = parked(rig)
    crowd(rig)
    assert agent.turn().dram_hit_tokens == 10 * 16


def test_after_a_fence_another_engine_does_not_find_what_came_later(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    """Weights that changed in place have no digest: their KV must not outlive the engine."""
    first = make_rig(**ssd(tmp_path))
    first.scheduler.reset_prefix_cache(reset_connector=True)
    agent = parked(first)
    context = list(agent.context)
    first.connector.shutdown()
    first.is_spoilt = True
    second = make_rig(**ssd(tmp_path))
    assert second.run("again", context).dram_hit_tokens == 0


def test_a_plain_reset_of_the_pool_keeps_the_tier(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    crowd(rig)
    rig.drop_gpu_cache()
    assert agent.turn().dram_hit_tokens == 10 * 16


def test_kv_of_an_adapter_stays_in_this_engine(make_rig: RigFactory, tmp_path: Path) -> None:
    """Its key names the adapter's path: other weights may lie there after a restart."""
    rig = make_rig(**ssd(tmp_path))
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=HUMAN, lora_request=LoRARequest("adapter", 1, "/adapters/one"))
    look_on(rig, 100)
    assert tier(rig).store.usage().num_entries == 0


def test_a_turn_that_returns_while_its_kv_is_being_parked(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**ssd(tmp_path))
    store, is_moving = tier(rig).store, threading.Event()
    original = store.store
    rig.has_stuck_tier = True

    def slow(entries: Sequence[Entry]) -> list[bool]:
        is_moving.wait(600.0)
        return original(entries)

    monkeypatch.setattr(store, "store", slow)
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=HUMAN)
    step_until(rig, lambda: rig.counter("agentkv:demoted_blocks", "ssd", "wait") > 0)
    agent.turn(tag=HUMAN)
    is_moving.set()
    rig.has_stuck_tier = False
    step_until(rig, lambda: blocks_in(rig, agent) >= 10)
    crowd(rig)
    agent.turn()
