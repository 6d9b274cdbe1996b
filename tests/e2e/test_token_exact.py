"""Whatever becomes of a pause, the next turn's tokens are those of a vLLM without the plugin."""

from typing import Any

import pytest

from .checks import assert_exact, assert_talks_alike, stored_traffic, traffic
from .conftest import StartEngine
from .engine import BLOCK_TOKENS, Answer, Ask, Engine, chain, prompt_of

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
}
both_ways = pytest.mark.parametrize("copies", ["threads", "inline"], indirect=True)
sampled = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)


def resumes(engine: Engine) -> list[dict[str, Any]]:
    return engine.ledger("resume")


@sampled
@pytest.mark.parametrize("policy", ["always_hold", "break_even"])
def test_a_held_session_resumes_from_the_pool(
    base: Engine, start: StartEngine, policy: str, sampling: dict[str, Any]
) -> None:
    engine = start({"policy": policy}, num_blocks=200)
    assert_talks_alike(base, engine, num_sessions=6, num_turns=3, sampling=sampling)
    assert len(resumes(engine)) == 12
    assert {(r["action"], r["tier"]) for r in resumes(engine)} == {("hold", "gpu")}
    assert all(r["recomputed_tokens"] == 0 for r in resumes(engine))
    assert engine.loaded_blocks == 0


@both_ways
@sampled
def test_a_swapped_session_resumes_from_dram(
    base: Engine, start: StartEngine, sampling: dict[str, Any]
) -> None:
    # Without prefetches: those of idle room would find it in the pool.
    settings = {"policy": "always_swap", "prefetch": {"enabled": False}}
    engine = start(settings, num_blocks=40)
    # Two at a time: with more, turns would be preempted and load twice.
    assert_talks_alike(
        base,
        engine,
        num_sessions=5,
        num_turns=3,
        concurrency=2,
        sampling=sampling,
        between=traffic,
    )
    found = resumes(engine)
    assert len(found) == 10
    assert {r["action"] for r in found} == {"swap"}
    assert all(r["dram_hit_tokens"] > 0 and r["recomputed_tokens"] == 0 for r in found)
    assert engine.loaded_blocks == sum(r["dram_hit_tokens"] for r in found) / BLOCK_TOKENS


@sampled
def test_a_recomputed_session_is_computed_again(
    base: Engine, start: StartEngine, sampling: dict[str, Any]
) -> None:
    # DRAM for 64 blocks: what is marked as recomputed makes room for the traffic.
    engine = start({"policy": "always_recompute", "dram": {"size_bytes": "1MiB"}}, num_blocks=40)
    assert_talks_alike(
        base, engine, num_sessions=4, num_turns=3, sampling=sampling, between=stored_traffic
    )
    assert {(r["action"], r["tier"]) for r in resumes(engine)} == {("recompute", "none")}
    assert all(r["recomputed_tokens"] >= 6 * BLOCK_TOKENS for r in resumes(engine))


def test_chunked_prefill_over_loaded_blocks(base: Engine, start: StartEngine) -> None:
    # Greedy only: vLLM's CPU sampler cannot rewind a seeded generator after a partial prefill.
    engine = start({"policy": "always_swap"}, num_blocks=40, max_num_batched_tokens=48)
    assert_talks_alike(base, engine, num_sessions=4, num_turns=3, more_tokens=130, between=traffic)
    assert engine.loaded_blocks > 0


def test_several_samples_of_one_request(base: Engine, start: StartEngine) -> None:
    engine = start({"policy": "always_swap"}, num_blocks=40)
    sampling = {"n": 3, "temperature": 1.5, "seed": 5}
    want = assert_talks_alike(
        base, engine, num_sessions=4, num_turns=2, sampling=sampling, between=traffic
    )
    assert any(len({a.tokens for a in (w, *w.siblings)}) > 1 for w in want.values())
    assert engine.loaded_blocks > 0


@sampled
def test_forked_sessions_share_a_prefix(
    base: Engine, start: StartEngine, sampling: dict[str, Any]
) -> None:
    """One trunk, five branches; the trunk's blocks are loaded once and used by all."""

    def fork(engine: Engine) -> dict[str, Answer]:
        trunk = prompt_of(1, 7 * BLOCK_TOKENS)
        answers = engine.run([Ask("trunk", trunk, session="trunk", sampling=sampling)])
        traffic(engine, 0)
        trunk = chain(trunk, answers["trunk"].tokens)
        for turn in range(2):
            asks = [
                Ask(
                    f"b{b}-t{turn}",
                    chain(trunk, prompt_of(10 + b, 40 * (turn + 1))),
                    session=f"b{b}",
                    sampling=sampling,
                )
                for b in range(5)
            ]
            answers |= engine.run(asks)
            traffic(engine, 1 + turn)
        return answers

    engine = start({"policy": "always_swap"}, num_blocks=40)
    assert_exact(fork(base), fork(engine), is_sampled=bool(sampling))
    assert engine.loaded_blocks > 0


@sampled
def test_preempted_turns(base: Engine, start: StartEngine, sampling: dict[str, Any]) -> None:
    engine = start({"policy": "break_even"}, num_blocks=34)
    assert_talks_alike(
        base,
        engine,
        num_sessions=8,
        num_turns=2,
        first_tokens=60,
        num_tokens=80,
        concurrency=8,
        sampling=sampling,
    )
    assert engine.count("vllm:num_preemptions") > 0
    assert engine.loaded_blocks > 0


def test_aborts_leave_the_other_requests_alone(base: Engine, start: StartEngine) -> None:
    """Every third request is cut off: while it waits, loads, computes its prompt or answers."""

    def ask(name: str, seed: int) -> Ask:
        return Ask(name, prompt_of(seed, 230), 12, session=f"s{seed}")

    want = base.run([ask(f"r{i}", i) for i in range(18)])
    engine = start({"policy": "always_swap"}, num_blocks=40, max_num_batched_tokens=64)
    for step in range(12):
        engine.run([ask(f"warm{step}-{i}", i) for i in range(0, 18, 2)])
        victims = {f"r{i}" for i in range(0, 18, 3)}
        asks = {f"r{i}": ask(f"r{i}", i) for i in range(18)}
        got = _run_and_abort(engine, asks, victims, after_steps=step)
        assert_exact({name: want[name] for name in got}, got)
        assert len(got) >= 12
    assert engine.loaded_blocks > 0


def _run_and_abort(
    engine: Engine, asks: dict[str, Ask], victims: set[str], *, after_steps: int
) -> dict[str, Answer]:
    """Adds all at once; cuts each victim off so many steps after it began to wait."""
    num_steps = 0

    def abort(engine: Engine) -> None:
        nonlocal num_steps
        if num_steps % 4 == after_steps % 4 and victims:
            engine.abort(victims.pop())
        num_steps += 1

    return engine.run(asks.values(), concurrency=len(asks), on_step=abort)


@both_ways
@pytest.mark.parametrize("dram", ["16MiB", "3MiB"])
def test_a_crowd_in_a_small_pool(base: Engine, start: StartEngine, dram: str) -> None:
    """Sessions several times what the pool holds, and DRAM for all of them or for some."""
    engine = start({"dram": {"size_bytes": dram}}, num_blocks=48)
    assert_talks_alike(base, engine, num_sessions=24, num_turns=3, concurrency=8)
    assert engine.loaded_blocks > 0
