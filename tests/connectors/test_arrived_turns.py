"""A turn that has arrived and waits for a slot keeps its KV until it runs.

The pressure: more sessions return than there are slots, and each turn that runs needs blocks which
only other sessions' KV can provide. Sessions that have not returned must provide them.
"""

from collections.abc import Callable

import pytest
from kit import Agent, Kind, Rig, blocks

RigFactory = Callable[..., Rig]
NUM_RETURNING = 3
SESSION_BLOCKS = 8


def _returning_and_away(rig: Rig, *, session_blocks: int = SESSION_BLOCKS) -> list[Agent]:
    """Sessions that return are the least recently used ones, then come as many that stay away."""
    returning = [Agent(rig, f"back{i}", i + 1, session_blocks) for i in range(NUM_RETURNING)]
    away = [Agent(rig, f"away{i}", i + 50, session_blocks) for i in range(NUM_RETURNING + 1)]
    for agent in [*returning, *away]:
        agent.turn()
    return returning


def _lost_tokens(rig: Rig, returning: list[Agent], *, tool_blocks: float = 8) -> int:
    """All return at once; counts the tokens that were in the pool then and not when they ran."""
    ids: list[str] = []
    lost = 0
    for agent in returning:
        ids.append(agent.arrive(tool_tokens=blocks(tool_blocks), max_tokens=2))
    for request_id in ids:
        tokens = rig.results[request_id].request.prompt_token_ids
        lost += blocks(SESSION_BLOCKS) - rig.cached_blocks(tokens[: blocks(SESSION_BLOCKS)]) * 16
    assert lost == 0, "everything was in the pool when the turns arrived"
    rig.settle()
    for request_id in ids:
        rig.check_answer(request_id)
        lost += blocks(SESSION_BLOCKS) - rig.results[request_id].gpu_hit_tokens
    return lost


@pytest.mark.parametrize("is_async", [False, True])
def test_every_arrived_turn_finds_its_whole_prefix_in_the_pool(
    make_rig: RigFactory, is_async: bool
) -> None:
    rig = make_rig(pool_blocks=60, max_num_seqs=1, is_async=is_async)
    assert _lost_tokens(rig, _returning_and_away(rig)) == 0


def test_every_arrived_turn_of_a_hybrid_model_finds_its_whole_prefix(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=110, max_num_seqs=1, is_hybrid=True)
    assert _lost_tokens(rig, _returning_and_away(rig)) == 0


@pytest.mark.parametrize("kind", [Kind.NONE, Kind.LRU])
@pytest.mark.parametrize("is_hybrid", [False, True])
def test_without_the_plugin_arrived_turns_lose_their_prefix(
    make_rig: RigFactory, kind: Kind, is_hybrid: bool
) -> None:
    pool_blocks = 110 if is_hybrid else 60
    rig = make_rig(pool_blocks=pool_blocks, max_num_seqs=1, kind=kind, is_hybrid=is_hybrid)
    assert _lost_tokens(rig, _returning_and_away(rig)) >= blocks(SESSION_BLOCKS)


def test_the_next_turn_to_run_is_protected_best(make_rig: RigFactory) -> None:
    """Where not even the arrived turns' blocks suffice, the last to run loses first."""
    rig = make_rig(pool_blocks=30, max_num_seqs=1)
    returning = [Agent(rig, f"back{i}", i + 1, SESSION_BLOCKS) for i in range(NUM_RETURNING)]
    for agent in returning:
        agent.turn()
    ids = [agent.arrive(tool_tokens=blocks(9), max_tokens=2) for agent in returning]
    rig.settle()
    hits = [rig.results[request_id].gpu_hit_tokens for request_id in ids]
    assert hits[0] == blocks(SESSION_BLOCKS)
    assert hits[0] >= hits[1] >= hits[2] and hits[2] < blocks(SESSION_BLOCKS)
    assert rig.counter("agentkv:protected_blocks") > 0


def test_the_blocks_before_a_window_need_not_be_there(make_rig: RigFactory) -> None:
    """Of a sliding window only the last blocks last long; the prefix is whole all the same."""
    rig = make_rig(pool_blocks=53, max_num_seqs=1, is_hybrid=True)
    returning = [Agent(rig, f"back{i}", i + 1, SESSION_BLOCKS + 0.5) for i in range(NUM_RETURNING)]
    for agent in returning:
        agent.turn()
    for agent in returning:
        for block_hash in rig.hashes(agent.context)[:4]:
            for block in rig.pool.get_cached_block(block_hash, [1]) or ():
                rig.pool.evict_blocks({block.block_id})
    ids = [agent.arrive(tool_tokens=blocks(9), max_tokens=2) for agent in returning]
    rig.settle()
    hits = [rig.results[request_id].gpu_hit_tokens for request_id in ids]
    assert hits == [blocks(SESSION_BLOCKS)] * NUM_RETURNING


def _dram_lost_tokens(rig: Rig, returning: list[Agent], away: list[Agent]) -> int:
    """As `_lost_tokens`, for sessions whose KV is in DRAM alone."""
    rig.drop_gpu_cache()
    ids = [agent.arrive(tool_tokens=blocks(10), max_tokens=2) for agent in returning]
    rig.settle()
    for request_id in ids:
        rig.check_answer(request_id)
    hits = [
        rig.results[i].gpu_hit_tokens + rig.results[i].dram_hit_tokens  # type: ignore[operator]
        for i in ids
    ]
    return sum(blocks(SESSION_BLOCKS) - hit for hit in hits)


@pytest.mark.parametrize(
    ("fields", "is_lost"),
    [
        ({}, False),
        ({"kind": Kind.LRU}, True),
        ({"extra": {"protect_arrived_turns": False}}, True),
    ],
    ids=["protected", "lru", "off"],
)
def test_the_dram_tier_keeps_what_arrived_turns_will_load(
    make_rig: RigFactory, fields: dict[str, object], is_lost: bool
) -> None:
    rig = make_rig(pool_blocks=24, dram_blocks=60, max_num_seqs=1, **fields)
    returning = [Agent(rig, f"back{i}", i + 1, SESSION_BLOCKS) for i in range(NUM_RETURNING)]
    away = [Agent(rig, f"away{i}", i + 50, SESSION_BLOCKS) for i in range(4)]
    for agent in [*returning, *away]:
        agent.turn()
    lost = _dram_lost_tokens(rig, returning, away)
    assert lost >= blocks(1) if is_lost else lost == 0


def test_an_aborted_turn_is_protected_no_longer(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=70, max_num_seqs=1)
    returning = _returning_and_away(rig)
    rig.add("busy", list(range(20)), max_tokens=200)
    rig.step(2)
    waiting = [agent.arrive() for agent in returning]
    rig.side.before_dram_evicts(1, set())
    assert len(rig.side._arrived) == NUM_RETURNING and rig.dram._arrived
    rig.abort(*waiting)
    rig.step(1)
    assert not rig.side._arrived and not rig.dram._arrived


def test_a_running_turn_counts_as_waiting_no_longer_even_after_a_reset(
    make_rig: RigFactory,
) -> None:
    """vLLM's reset preempts all and would admit them again within one step."""
    rig = make_rig()
    rig.add("r", list(range(50)), max_tokens=40)
    rig.step(3)
    assert rig.scheduler.reset_prefix_cache(reset_running_requests=True)
    rig.step_until(lambda: bool(rig.scheduler.running), max_steps=5)
    assert not rig.side._arrived
    rig.settle()
    rig.check_answer("r")
