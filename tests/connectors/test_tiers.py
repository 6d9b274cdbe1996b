"""KV of long pauses goes down to a real disk and comes back, whatever happens meanwhile.

The runner compares every element a turn reads with its canary: each answer checked here is a check
of what came up from the tier, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kit import Agent, Rig, prompt
from kit.control import signal
from kit.tiers import HUMAN, blocks_in, crowd, look_on, parked, ssd, step_until, tier

from agentkv.signals import Status
from agentkv.tiers.base import Entry

RigFactory = Callable[..., Rig]


def test_a_long_pause_is_parked_and_its_turn_is_exact(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    crowd(rig)
    assert rig.cached_blocks(agent.context) == 0
    assert rig.dram_blocks(agent.context) == 0
    result = agent.turn()
    assert result.dram_hit_tokens == 10 * 16
    assert rig.counter("agentkv:promoted_blocks", "ssd", "turn") == 10
    assert rig.counter("agentkv:resumes", "ssd") == 1
    assert rig.counter("agentkv:resume_tokens", "ssd") == 10 * 16


def test_a_short_pause_stays_where_it_is(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig, "human")
    other = crowd(rig, rounds=1)[0]
    look_on(rig, 100)
    assert blocks_in(rig, other) == 0
    assert blocks_in(rig, agent) == 10


def test_a_disk_kept_free_for_others_takes_nothing(make_rig: RigFactory, tmp_path: Path) -> None:
    fields = ssd(tmp_path)
    fields["extra"]["ssd"]["min_free_bytes"] = 1 << 60
    rig = make_rig(**fields)
    agent = Agent(rig, "human", 1, 10)
    agent.turn(tag=HUMAN)
    look_on(rig, 100)
    assert blocks_in(rig, agent) == 0
    assert rig.counter("agentkv:tier_failures", "ssd", "disk_full") > 0
    agent.turn()


def test_what_dram_must_drop_is_written_before(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**{**ssd(tmp_path), "dram_blocks": 96})
    agents = []
    for i in range(12):
        agents += crowd(rig, seed=500 + i, rounds=1)
        step_until(rig, lambda: rig.dram.num_sole <= 72)
    assert rig.counter("agentkv:demoted_blocks", "ssd", "pressure") > 50
    for agent in agents:
        agent.turn()
        step_until(rig, lambda: rig.dram.num_sole <= 72)
    recomputed = rig.counter("agentkv:resume_tokens", "recomputed")
    assert recomputed < rig.counter("agentkv:resume_tokens", "ssd") / 10


def test_after_resume_the_kv_comes_from_the_disk_to_the_pool(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    crowd(rig)
    assert signal(rig, "resume", "waiting").status is Status.ACCEPTED
    step_until(rig, lambda: rig.cached_blocks(agent.context) >= 10)
    num_computed = rig.runner.num_computed_tokens
    result = agent.turn()
    assert result.gpu_hit_tokens == 10 * 16 and result.dram_hit_tokens == 0
    assert rig.runner.num_computed_tokens - num_computed < 40
    assert rig.counter("agentkv:promoted_blocks", "ssd", "prefetch") == 10


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hybrid_model_comes_back_with_all_its_groups(
    make_rig: RigFactory, tmp_path: Path, is_async: bool
) -> None:
    rig = make_rig(**ssd(tmp_path), is_hybrid=True, is_async=is_async)
    agent = parked(rig, num_blocks=8)
    crowd(rig)
    result = agent.turn()
    assert result.dram_hit_tokens and result.dram_hit_tokens >= 6 * 16


def test_a_new_engine_on_the_same_directory_finds_it(make_rig: RigFactory, tmp_path: Path) -> None:
    first = make_rig(**ssd(tmp_path))
    agent = parked(first)
    context = list(agent.context)
    first.connector.shutdown()
    second = make_rig(**ssd(tmp_path))
    result = second.run("again", context, session="waiting")
    second.check_answer("again")
    assert result.dram_hit_tokens == 10 * 16
    first.is_spoilt = True


def test_a_flipped_byte_on_the_disk_is_a_miss(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    crowd(rig)
    flip_stored_byte(tmp_path)
    result = agent.turn()  # The canaries of every element are checked.
    assert result.dram_hit_tokens is not None and result.dram_hit_tokens < 10 * 16
    step_until(rig, lambda: rig.counter("agentkv:tier_failures", "ssd", "checksum") >= 1)


def flip_stored_byte(path: Path) -> None:
    """One bit of every stored block is another now."""
    segments = [
        file for file in path.rglob("*") if file.is_file() and file.stat().st_size > 1 << 20
    ]
    assert segments
    for segment in segments:
        content = bytearray(segment.read_bytes())
        for start in range(0, len(content), 4096):
            content[start + 77] ^= 1
        with segment.open("r+b") as file:  # The same file: the store has it open.
            file.write(content)


def test_without_the_checksum_the_canary_finds_the_flipped_byte(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(**ssd(tmp_path))
    rig.is_spoilt = True
    agent = parked(rig)
    crowd(rig)
    store = tier(rig).store

    def load_damaged(entries: list[Entry]) -> list[bool]:
        results = type(store).load(store, entries)
        entries[0].data[77] ^= 1
        return results

    monkeypatch.setattr(store, "load", load_damaged)
    with pytest.raises(AssertionError):
        agent.turn()


def test_a_damaged_dram_block_is_not_written_down(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path, park_after_s=5.0))
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag={"tool": "bash", "expected_wait_s": 1.0})
    rig.flip_dram_byte(agent.context, 3)
    rig.clock.advance(10.0)
    step_until(rig, lambda: blocks_in(rig, agent) >= 9)
    assert blocks_in(rig, agent) == 9
    step_until(rig, lambda: rig.dram_blocks(agent.context) == 9)


def test_the_end_of_a_session_drops_its_blocks_but_not_shared_ones(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig = make_rig(**ssd(tmp_path))
    shared = prompt(99, 4 * 16)
    agents = [Agent(rig, f"a{i}", i + 1, 6, shared=shared) for i in range(2)]
    for agent in agents:
        agent.turn(tag=HUMAN)
        step_until(rig, lambda agent=agent: blocks_in(rig, agent) >= 10)
    assert tier(rig).store.usage().num_entries == 16, "the shared blocks are there once"
    signal(rig, "end", "a0")
    step_until(rig, lambda: tier(rig).store.usage().num_entries == 10)
    assert blocks_in(rig, agents[1]) == 10
    signal(rig, "end", "a1")
    step_until(rig, lambda: tier(rig).store.usage().num_entries == 0)


def test_a_session_forgotten_after_hours_still_finds_its_kv(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    rig = make_rig(**ssd(tmp_path))
    agent = parked(rig)
    rig.clock.advance(3700.0)
    crowd(rig)
    assert rig.controller.sessions.count_by_state() is not None
    assert rig.dram_blocks(agent.context) == 0
    assert agent.turn().dram_hit_tokens == 10 * 16


@pytest.mark.parametrize("has_ssd", [False, True])
def test_look_ups_are_counted_by_tier_only_where_there_are_tiers(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ssd: bool
) -> None:
    """vLLM looks up every block of every waiting turn with every step: counting each is dear."""
    rig = make_rig(**ssd(tmp_path)) if has_ssd else make_rig()
    counted: list[object] = []
    manager = rig.connector.connector_scheduler.manager
    monkeypatch.setattr(manager._metrics, "on_lookup", lambda *args: counted.append(args))
    agent = Agent(rig, "a", 1, 10)
    agent.turn()
    agent.turn()
    assert bool(counted) is has_ssd
