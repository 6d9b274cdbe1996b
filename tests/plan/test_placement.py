"""Placements on cases computed by hand, and what must hold for any trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim.builders import made_up_trace, small_profile
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.errors import ConfigError
from agentkv.plan.placement import (
    AffinityLoad,
    Candidate,
    LeastLoaded,
    Placement,
    RoundRobin,
    Sticky,
    affinity_load,
    placements,
)
from agentkv.plan.placement_run import Cluster, PlacementResult, play
from agentkv.plan.replica_kv import Lineage, PrefixCache, ReplicaKv
from agentkv.sim.trace import TraceSession, TraceTurn

KINDS: list[Callable[[], Placement]] = placements((0.0, 0.5, 1.0), max_load=4, gamma=1.0)
# 10 tokens a second at any position, no time to decode, 100 tokens a second from DRAM.
PLAIN = small_profile(
    pool_tokens=1000,
    bytes_per_token=1.0,
    prefill_tokens_per_s=10.0,
    prefill_x0_tokens=1e15,
    decode_step_s=1e-12,
    kv_read_bytes_per_s=1e15,
    load_bytes_per_s=100.0,
    load_latency_s=0.0,
)


def chat(name: str, *sizes: int, wait_s: float = 10.0) -> TraceSession:
    """Prompts of these sizes, each the one before and more; no answers to speak of."""
    turns = [
        TraceTurn(size, 0, number - 1, sizes[number - 1] if number else 0, wait_s)
        for number, size in enumerate(sizes)
    ]
    return TraceSession(name, tuple(turns))


def run(
    sessions: list[TraceSession], placement: Placement, *, replicas: int = 2, **fields: Any
) -> PlacementResult:
    changes = {"profile": PLAIN, "dram_tokens": 0, **fields}
    cluster = Cluster(changes["profile"], replicas, changes["dram_tokens"])
    return play(sessions, cluster, placement, num_agents=fields.get("agents", len(sessions)))


# --- by hand ---


def test_the_documents_example_goes_to_the_worker_that_has_the_prefix() -> None:
    """S = 40,000, 32,000 of them cached on worker 1: 80 %, and 8,000 tokens are left to compute."""
    size, cached = 40_000, 32_000
    workers = [Candidate(0, 1), Candidate(cached, 3), Candidate(0, 0)]
    assert cached / size == 0.8 and size - cached == 8_000
    # 0.5·0.8 - 0.5·3/4 = 0.025 there, -0.125 and 0 elsewhere.
    assert affinity_load(0.8, 3 / 4, weight=0.5) == pytest.approx(0.025)
    assert AffinityLoad(weight=0.5, max_load=4).choose("s", size, workers) == 1
    # 0.4·0.8 - 0.6·3/4 = -0.13: then the idle one.
    assert AffinityLoad(weight=0.4, max_load=4).choose("s", size, workers) == 2
    # (3/4)² = 0.5625, and 0.32 - 0.3375 < 0 still; with the cube 0.32 - 0.253 > 0.
    assert AffinityLoad(weight=0.4, max_load=4, gamma=2).choose("s", size, workers) == 2
    assert AffinityLoad(weight=0.4, max_load=4, gamma=3).choose("s", size, workers) == 1


def test_round_robin_with_three_sessions_on_two_replicas() -> None:
    """A B C A B C go to 0 1 0 1 0 1: none finds its 40 tokens, all 120 are computed again.

    At 0 s: A takes 4 s, C after it until 8 s; B 4 s. Back at 14 (A, B) and 18 s (C): 5 s each, C
    waits for A on replica 1 until 19 s.
    """
    sessions = [chat(name, 40, 50) for name in "ABC"]
    result = run(sessions, RoundRobin())
    assert (result.num_turns, result.moved_turns) == (6, 3)
    assert (result.prompt_tokens, result.reusable_tokens) == (270, 120)
    assert result.recomputed_tokens == 120
    assert result.makespan_s == pytest.approx(24.0)
    # Busy: 0 has A0, C0, B1 = 13 s, 1 has B0, A1, C1 = 14 s.
    assert result.imbalance == pytest.approx(14 / 13.5)
    assert result.wait_p50_s == pytest.approx(5.0)  # 4 4 8 5 5 6


def test_sticky_sessions_compute_only_what_is_new() -> None:
    """As above, but each comes home: 1 s for ten new tokens."""
    result = run([chat(name, 40, 50) for name in "ABC"], Sticky())
    assert (result.recomputed_tokens, result.moved_turns) == (0, 0)
    assert result.makespan_s == pytest.approx(19.0)
    assert result.imbalance == pytest.approx(10 / 7.5)


def test_what_the_pool_lost_comes_from_dram_or_is_computed() -> None:
    """One replica, 60 tokens of pool. B's 40 push 20 of A's out, its tail first."""
    sessions = [chat("A", 40, 50), chat("B", 40)]
    small = replace_profile(pool_tokens=60)
    without = run(sessions, LeastLoaded(), replicas=1, profile=small)
    assert (without.recomputed_tokens, without.dram_tokens) == (20, 0)
    # A 0-4 s, B 4-8 s, A again at 14 s: 30 tokens, 3 s.
    assert without.makespan_s == pytest.approx(17.0)
    with_dram = run(sessions, LeastLoaded(), replicas=1, profile=small, dram_tokens=20)
    assert (with_dram.recomputed_tokens, with_dram.dram_tokens) == (0, 20)
    assert with_dram.makespan_s == pytest.approx(14 + 0.2 + 1)


def replace_profile(**changes: Any) -> Any:
    return PLAIN.model_copy(update=changes)


def test_a_shared_prefix_counts_on_every_replica_that_has_it() -> None:
    """30 of 40 tokens shared: B finds them where A was, and not elsewhere."""
    shared = [
        replace(chat(name, 40), shared_key="harness", shared_tokens=30) for name in ("A", "B")
    ]
    here = run(shared, LeastLoaded(), replicas=1, agents=1)
    assert (here.reusable_tokens, here.recomputed_tokens) == (30, 0)
    there = run(shared, RoundRobin(), replicas=2, agents=1)
    assert (there.reusable_tokens, there.recomputed_tokens) == (30, 30)


def test_a_rewritten_history_shares_what_its_turns_have_in_common() -> None:
    turns = (
        TraceTurn(100, 10, -1, 0),
        TraceTurn(150, 10, 0, 110),
        TraceTurn(80, 5, 0, 60),  # Compacted: 60 tokens of the first turn.
        TraceTurn(120, 5, 2, 85),
        TraceTurn(50, 5, -1, 0),
    )
    lineage = Lineage(TraceSession("s", turns))
    assert lineage.common(1, 1) == 160
    assert lineage.common(2, 1) == lineage.common(1, 2) == 60
    assert lineage.common(3, 2) == 85 and lineage.common(3, 1) == 60
    assert lineage.common(4, 3) == 0
    kv = ReplicaKv(1000, 0)
    kv.put("s", lineage, 1)
    assert kv.match("s", lineage, 3).tokens == 60


def test_room_is_made_at_the_tail_of_what_was_used_longest_ago() -> None:
    cache = PrefixCache(100)
    cache.put("a", 0, 60)
    cache.put("b", 0, 40)
    cache.touch("a")
    cache.put("c", 0, 30)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ((0, 60), (0, 10), (0, 30))
    cache.put("d", 1, 500)
    assert cache.get("d") == (1, 100) and cache.get("a") == (-1, 0)


# --- for any trace ---


@pytest.fixture(params=[0, 1, 2])
def trace(request: pytest.FixtureRequest) -> list[TraceSession]:
    return made_up_trace(request.param, num_sessions=30)


@pytest.mark.parametrize("make", KINDS)
def test_tokens_add_up_and_the_same_run_gives_the_same(
    trace: list[TraceSession], make: Callable[[], Placement]
) -> None:
    cluster = Cluster(small_profile(pool_tokens=8000), 3, 4000)
    result = play(trace, cluster, make(), num_agents=10, seed=5)
    assert result == play(trace, cluster, make(), num_agents=10, seed=5)
    assert result.num_turns == sum(len(session.turns) for session in trace)
    assert result.prompt_tokens == sum(t.prompt_tokens for s in trace for t in s.turns)
    assert 0 < result.recomputed_tokens <= result.reusable_tokens <= result.prompt_tokens
    assert 1.0 <= result.imbalance <= 3.0
    assert 0 < result.wait_p50_s <= result.wait_p95_s <= result.makespan_s


def test_with_room_for_all_nothing_is_computed_again_at_home(trace: list[TraceSession]) -> None:
    unshared = [replace(session, shared_tokens=0) for session in trace]
    for placement in (Sticky(), AffinityLoad(weight=1.0, max_load=4)):
        cluster = Cluster(small_profile(pool_tokens=10**9), 3, 0)
        result = play(unshared, cluster, placement, num_agents=10)
        assert (result.recomputed_tokens, result.moved_turns) == (0, 0), placement.name


def test_with_one_replica_all_placements_are_the_same(trace: list[TraceSession]) -> None:
    cluster = Cluster(small_profile(pool_tokens=8000), 1, 4000)
    results = [
        replace(play(trace, cluster, make(), num_agents=10), placement="any") for make in KINDS
    ]
    assert all(result == results[0] for result in results)


def test_without_affinity_only_load_counts(trace: list[TraceSession]) -> None:
    cluster = Cluster(small_profile(pool_tokens=8000), 3, 0)
    blind = play(trace, cluster, AffinityLoad(weight=0.0, max_load=4), num_agents=10)
    least = play(trace, cluster, LeastLoaded(), num_agents=10)
    assert replace(blind, placement="") == replace(least, placement="")


def test_more_dram_never_computes_more_where_placement_is_given(trace: list[TraceSession]) -> None:
    recomputed = [
        play(
            trace, Cluster(small_profile(pool_tokens=4000), 1, dram), LeastLoaded(), num_agents=1
        ).recomputed_tokens
        for dram in (0, 2000, 8000, 10**6)
    ]
    assert recomputed == sorted(recomputed, reverse=True) and recomputed[-1] == 0


# --- the command ---


def write(path: Path, sessions: list[TraceSession]) -> str:
    rows = [
        {
            **{"session_id": session.name, "turn": number, "src": "made-up"},
            **{"input_tokens": turn.prompt_tokens, "output_tokens": turn.output_tokens},
            **{"prefix_turn": turn.prefix_turn, "prefix_tokens": turn.prefix_tokens},
            **{"shared_prefix_tokens": session.shared_tokens, "wait_s": turn.wait_s},
        }
        for session in sessions
        for number, turn in enumerate(session.turns)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["placement", *arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_a_table_and_writes_the_same(tmp_path: Path) -> None:
    trace, out = write(tmp_path / "t.jsonl", made_up_trace()), tmp_path / "out.json"
    profile = tmp_path / "small.json"
    profile.write_text(small_profile(pool_tokens=8000).model_dump_json())
    options = f"--replicas 2 --agents 8 --profile {profile} --affinity 0.3,0.8 --json {out}"
    text = invoke(trace, *options.split())
    rows = {row["placement"]: row for row in json.loads(out.read_text())["placements"]}
    assert [*rows] == ["round_robin", "least_loaded", "sticky", "affinity 0.3", "affinity 0.8"]
    for name, row in rows.items():
        assert f"{100 * row['recomputed_share']:.3g} %" in text and name in text
    assert rows["sticky"]["recomputed_tokens"] < rows["round_robin"]["recomputed_tokens"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--affinity 1.5", "--affinity 1.5: give a weight from 0 to 1"),
        ("--affinity half", "--affinity half: give numbers"),
        ("--gamma 0", "--gamma 0: give an exponent above 0"),
        ("--max-load 0", "--max-load 0: give a number of turns above 0"),
        ("--max-context 10", "--max-context 10: no session is so short; give at least"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        invoke(write(tmp_path / "t.jsonl", made_up_trace()), *options.split())
