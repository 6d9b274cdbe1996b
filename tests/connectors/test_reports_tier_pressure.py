"""Public bug reports about tiers below DRAM that are slow, stuck or full, and about what piles up.

Each test is named after its report in `tests/BUG_REPORTS.md`. A stuck device is a store whose calls
do not return until the test lets them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kit import Agent, Rig
from kit.control import signal
from kit.tiers import HUMAN, WAIT_S, blocks_in, crowd, look_on, parked, ssd, step_until, tier

from agentkv.connectors import slow_tiers
from agentkv.cost_model import LinkSpeed
from agentkv.tiers.base import Entry

RigFactory = Callable[..., Rig]


class Stuck:
    """A tier whose stores do not end until `let_go`."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_move, self._rig = threading.Event(), rig
        rig.has_stuck_tier = True
        self.num_calls = 0
        store = tier(rig).store
        original = store.store

        def held(entries: Sequence[Entry]) -> list[bool]:
            self.num_calls += 1
            self._may_move.wait(600.0)
            return original(entries)

        monkeypatch.setattr(store, "store", held)

    def let_go(self) -> None:
        self._may_move.set()
        self._rig.has_stuck_tier = False


def manager_of(rig: Rig) -> Any:
    return rig.connector.connector_scheduler.manager


def park_many(rig: Rig, num_agents: int, *, first_seed: int = 50) -> list[Agent]:
    agents = [Agent(rig, f"p{first_seed + i}", first_seed + i, 6) for i in range(num_agents)]
    for agent in agents:
        agent.turn(tag=HUMAN)
        look_on(rig, 5)
    return agents


def test_a48_a77_a_store_that_never_ends_keeps_little_of_dram(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pin has to time out: what may be on its way down is bounded, all else can be evicted."""
    rig = make_rig(**ssd(tmp_path))
    stuck = Stuck(rig, monkeypatch)
    most = max(8, manager_of(rig).num_chunks // 8)
    num_steps = rig.num_steps
    for round_ in range(6):
        park_many(rig, 1, first_seed=50 + round_)
        in_use = [chunk for chunk in rig.dram.chunks.values() if chunk.ref_cnt]
        assert len(in_use) == manager_of(rig).num_demoting_chunks <= most
    assert stuck.num_calls > 0 and rig.num_steps - num_steps < 500, "no step waits for a store"
    (other,) = crowd(rig, rounds=1)
    assert rig.dram_blocks(other.context) >= 18, "there is room for others in DRAM"
    stuck.let_go()
    step_until(rig, lambda: manager_of(rig).num_demoting_chunks == 0)


def test_a57_with_all_blocks_in_use_a_turn_waits_and_nothing_is_raised(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's blocks are fenced by stores, DRAM's by a demotion that does not end."""
    rig = make_rig(**{**ssd(tmp_path), "pool_blocks": 12, "dram_blocks": 8})
    stuck = Stuck(rig, monkeypatch)
    first = Agent(rig, "first", 1, 8)
    first.turn(tag=HUMAN)
    look_on(rig, 10)
    assert manager_of(rig).num_demoting_chunks == 8, "DRAM can evict nothing"
    rig.script.store_delay_steps = 6
    requests = [Agent(rig, f"a{i}", 10 + i, 9).arrive(max_tokens=20) for i in range(3)]
    rig.settle()
    for request_id in requests:
        rig.check_answer(request_id)
    assert not rig.counter("agentkv:faults")
    stuck.let_go()
    step_until(rig, lambda: manager_of(rig).num_demoting_chunks == 0)


def test_a56_a60_at_all_times_a_tier_keeps_to_its_size(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    fields = ssd(tmp_path)
    size_bytes = 1 << 20
    fields["extra"]["ssd"]["size_bytes"] = size_bytes
    rig = make_rig(**fields)
    agents: list[Agent] = []
    written = 0.0
    while written < 3 * size_bytes / 4096:
        agents += park_many(rig, 1, first_seed=1000 + len(agents))
        rig.clock.advance(1.0)
        files = [file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file()]
        assert sum(files) <= size_bytes and tier(rig).store.usage().used_bytes <= size_bytes
        written = rig.counter("agentkv:demoted_blocks")
        look_on(rig, 3)
    step_until(rig, lambda: manager_of(rig).num_demoting_chunks == 0)
    held = [blocks_in(rig, agent) for agent in agents]
    assert held[0] == 0 and held[-1] == 6, "the oldest go first"


def test_a61_an_engine_says_how_much_of_the_disk_it_may_take(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(slow_tiers.logger, "info", lambda text, *args: said.append(text % args))
    rig = make_rig(**ssd(tmp_path))
    assert tier(rig).store.usage().capacity_bytes == 64 << 20
    assert any("ssd tier: 0 blocks kept from before, 64MiB at most" in line for line in said)


def region_files(rig: Rig) -> list[str]:
    """What is in /dev/shm under the engine's name."""
    engine_id = rig.scheduler.vllm_config.kv_transfer_config.engine_id
    return sorted(file.name for file in Path("/dev/shm").glob(f"*{engine_id}*"))


def test_a69_live_engines_keep_their_memory_and_it_goes_with_them(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    """The region and its checksums; in a server neither has a name: `e2e/test_switching_on.py`."""
    first, second = make_rig(**ssd(tmp_path)), make_rig(**ssd(tmp_path))
    assert len(region_files(first)) == len(region_files(second)) == 2
    second.is_spoilt = True
    second.close()
    assert region_files(second) == []
    assert len(region_files(first)) == 2
    agent = parked(first)
    crowd(first)
    assert agent.turn().dram_hit_tokens == 10 * 16
    first.is_spoilt = True
    first.close()
    assert region_files(first) == []


@pytest.mark.parametrize("failure", ["raises", "refuses"])
def test_a105_a_store_that_failed_counts_as_nothing_stored(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    rig = make_rig(**ssd(tmp_path))
    store = tier(rig).store
    tier(rig).store_link = LinkSpeed(1e9)  # One that learns.
    speed = tier(rig).store_s(100)

    def broken(entries: Sequence[Entry]) -> list[bool]:
        if failure == "raises":
            raise RuntimeError("broken")
        return [False] * len(entries)

    monkeypatch.setattr(store, "store", broken)
    agent = Agent(rig, "waiting", 1, 10)
    agent.turn(tag=HUMAN)
    step_until(rig, lambda: rig.counter("agentkv:demoted_blocks") > 0)
    step_until(rig, lambda: manager_of(rig).num_demoting_chunks == 0)
    assert blocks_in(rig, agent) == 0 and store.usage().num_entries == 0
    assert not any(chunk.ref_cnt for chunk in rig.dram.chunks.values())
    assert tier(rig).store_s(100) == speed, "and teaches nothing about its speed"
    (session,) = rig.controller.sessions
    assert session.pause.parked_in is None and not session.pause.demoted
    monkeypatch.undo()
    rig.clock.advance(1.1)
    step_until(rig, lambda: blocks_in(rig, agent) >= 10)
    crowd(rig)
    assert agent.turn().dram_hit_tokens == 10 * 16


# --- what piles up ---


def end_at(rig: Rig, agent: Agent, moment: str) -> None:
    """Ends a session whose KV is being fetched from the tier."""
    signal(rig, "resume", agent.name)
    if moment == "middle":
        step_until(rig, lambda: rig.counter("agentkv:promoted_blocks", "ssd", "prefetch") > 0)
    elif moment == "end":
        step_until(rig, lambda: rig.cached_blocks(agent.context) >= 4)
    signal(rig, "end", agent.name)


def test_a53_prefetches_that_came_to_nothing_keep_no_share(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended at the start, in the middle, at the end, or with loads that fail; then one works."""
    rig = make_rig(**ssd(tmp_path))
    store = tier(rig).store
    load = store.load
    for number in range(16):
        moment = ("start", "middle", "end", "failing")[number % 4]
        agent = parked(rig, f"a{number}", num_blocks=4, seed=100 + number)
        crowd(rig, seed=1000 + 10 * number)
        if moment == "failing":
            monkeypatch.setattr(store, "load", lambda entries: [False] * len(entries))
        end_at(rig, agent, moment)
        step_until(rig, lambda: not manager_of(rig)._jobs)
        monkeypatch.setattr(store, "load", load)
    prefetcher = rig.side.returns.prefetcher
    assert prefetcher._bytes_loading == 0 and not prefetcher._loading
    last = parked(rig, "last", num_blocks=10, seed=99)
    crowd(rig, seed=5000)
    signal(rig, "resume", "last")
    step_until(rig, lambda: rig.cached_blocks(last.context) >= 10)
    assert last.turn().gpu_hit_tokens == 10 * 16


def sizes(owner: Any) -> Iterator[tuple[str, int]]:
    """The containers of a part, and how much is in each."""
    for name in (*getattr(owner, "__dict__", ()), *getattr(owner, "__slots__", ())):
        value = getattr(owner, name, None)
        if hasattr(value, "__len__") and not isinstance(value, str | bytes | memoryview):
            yield f"{type(owner).__name__}.{name}", len(value)


def test_a51_nothing_grows_with_the_number_of_requests(
    make_rig: RigFactory, tmp_path: Path
) -> None:
    """Sessions that come, are parked, return, and end: after half of them all is as big as ever."""
    fields = ssd(tmp_path)
    fields["extra"].update(ledger={"ring_size": 50}, hold={"lease_s": 5.0})
    rig = make_rig(**fields)

    def most(numbers: range) -> dict[str, int]:
        found: dict[str, int] = {}
        for number in numbers:
            live_and_end(rig, number)
            for name, size in itertools.chain.from_iterable(map(sizes, parts_of(rig))):
                found[name] = max(found.get(name, 0), size)
        return found

    first, second = most(range(60)), most(range(60, 120))
    assert len(first) > 30 and rig.counter("agentkv:demoted_blocks") > 100
    grown = {name: (first[name], size) for name, size in second.items() if size > first[name] + 24}
    assert not grown


def live_and_end(rig: Rig, number: int) -> None:
    agent = Agent(rig, f"s{number}", 100 + number, 4)
    for _ in range(2):
        agent.turn(tag=HUMAN)
        look_on(rig, 4)
        rig.clock.advance(WAIT_S)  # As was said: who is often wrong is not believed.
    signal(rig, "end", agent.name)
    rig.clock.advance(1.0)  # A pause that is over is known until its lease ends.


def parts_of(rig: Rig) -> Iterator[Any]:
    """Those that live as long as the engine."""
    side, controller = rig.side, rig.controller
    yield from (manager_of(rig), tier(rig), rig.dram, rig.copies)
    yield from (side, side.below, side.below._demoter, side.returns, side.returns.prefetcher)
    yield from (controller, controller.sessions, controller.pauses)


def test_a85_a_load_does_not_wait_behind_stores(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many stores as the tier has threads are stuck, more are queued; then a turn returns."""
    fields = {**ssd(tmp_path, load_timeout_s=1e6), "dram_blocks": 256}
    rig = make_rig(**fields)
    agent = parked(rig)
    crowd(rig, rounds=18)
    assert rig.dram_blocks(agent.context) == 0
    stuck = Stuck(rig, monkeypatch)
    park_many(rig, 8)
    look_on(rig, 40)
    assert manager_of(rig).num_demoting_chunks >= 24
    request_id = agent.arrive()
    step_until(rig, lambda: rig.results[request_id].is_finished)
    rig.check_answer(request_id)
    assert rig.results[request_id].dram_hit_tokens == 10 * 16
    stuck.let_go()
    step_until(rig, lambda: manager_of(rig).num_demoting_chunks == 0)


def test_a105_a_pause_of_which_nothing_was_written_is_not_said_to_be_parked(
    make_rig: RigFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused for seconds, and written when the tier takes it again."""
    rig = make_rig(**ssd(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(tier(rig).store, "store", lambda entries: [False] * len(entries))
        agent = Agent(rig, "waiting", 1, 10)
        agent.turn(tag=HUMAN)
        (session,) = rig.controller.sessions
        for _ in range(60):
            rig.clock.advance(0.1)
            look_on(rig, 2)
        assert blocks_in(rig, agent) == 0
        assert session.pause is not None and session.pause.parked_in is None
    rig.clock.advance(5.0)
    step_until(rig, lambda: session.pause.parked_in == "ssd")
    assert blocks_in(rig, agent) == 10
