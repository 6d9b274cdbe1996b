"""Public bug reports about what is stored, what is loaded and what is counted.

Each test is named after its report in `tests/BUG_REPORTS.md`.
"""

import random
from collections.abc import Callable

import pytest
from kit import Agent, Rig, blocks, prompt
from kit.engine_config import CHUNK_BYTES

RigFactory = Callable[..., Rig]


@pytest.mark.parametrize(
    ("num_tokens", "loaded_blocks"), [(1, 0), (15, 0), (16, 0), (17, 0), (32, 2), (48, 3), (50, 3)]
)
def test_a81_only_hits_worth_a_load_are_loaded_and_the_others_are_explained(
    make_rig: RigFactory, num_tokens: int, loaded_blocks: int
) -> None:
    rig = make_rig(extra={"min_load_tokens": blocks(2)})
    tokens = prompt(1, num_tokens)
    rig.run("first", tokens, max_tokens=1)
    stored = rig.dram_blocks(tokens)
    assert stored == num_tokens // 16, "a short prompt is stored all the same"
    rig.drop_gpu_cache()
    num_chunks = len(rig.dram.chunks)
    again = rig.run("again", [*tokens, 1], max_tokens=1)
    rig.check_answer("again")
    assert again.dram_hit_tokens == blocks(loaded_blocks)
    assert rig.counter("agentkv:short_hits_skipped") == (stored == 1)
    num_new = (num_tokens + 1) // 16 - stored
    assert len(rig.dram.chunks) == num_chunks + num_new, "what is there is not stored again"
    assert rig.counter("vllm:kv_offload_store_bytes") == CHUNK_BYTES * (num_chunks + num_new)


@pytest.mark.parametrize("local_blocks", [4, 6])
def test_a82_a_coarser_chunk_never_gives_a_negative_load(
    make_rig: RigFactory, local_blocks: int
) -> None:
    """Four KV blocks a chunk; the pool holds as many blocks or more than the whole chunks do."""
    rig = make_rig(extra={"offloading": {"blocks_per_chunk": 4}})
    tokens = prompt(1, blocks(local_blocks))
    rig.run("first", tokens, max_tokens=1)
    again = rig.run("again", [*tokens, 1], max_tokens=1)
    assert again.gpu_hit_tokens == blocks(local_blocks) and again.dram_hit_tokens == 0
    assert rig.copies.num_loads == 0
    rig.drop_gpu_cache()
    cold = rig.run("cold", [*tokens, 1], max_tokens=1)
    assert cold.dram_hit_tokens == blocks(4)
    rig.check_answer("cold")


def test_a82_a_coarser_chunk_is_not_taken_for_missing(make_rig: RigFactory) -> None:
    rig = make_rig(extra={"offloading": {"blocks_per_chunk": 4}})
    agent = Agent(rig, "agent", 1, 12)
    agent.turn()
    rig.drop_gpu_cache()
    sessions = rig.controller.sessions
    (session,) = sessions
    refs = sessions.private_blocks(session)
    assert len(refs) == 12
    assert rig.controller._deps.locate(refs).num_missing == 0
    rig.dram.clear()
    assert rig.controller._deps.locate(refs).num_missing == 12
    rig.is_spoilt = True


def test_what_lies_before_a_window_is_not_taken_for_missing(make_rig: RigFactory) -> None:
    rig = make_rig(is_hybrid=True)
    agent = Agent(rig, "agent", 1, 12.5)
    agent.turn()
    locate = rig.controller.appraiser._deps.locate
    (session,) = rig.controller.sessions
    refs = rig.controller.sessions.private_blocks(session)
    assert len(refs) == 12 and rig.dram_blocks(agent.context, group=1) == 3
    rig.drop_gpu_cache()
    assert locate(refs).num_missing == 0
    last = rig.side.layout.keys(refs[:1])[1]
    rig.primary.complete_load([], None)
    assert rig.side._damaged._drop(last)
    assert locate(refs).num_missing == 1


def test_a89_only_sessions_that_may_return_are_stored(make_rig: RigFactory) -> None:
    rig = make_rig()
    prompts = {name: prompt(seed, blocks(3)) for seed, name in enumerate("abcd", start=1)}
    rig.run("a", prompts["a"], tag={"last_turn": True})
    rig.run("b.0", prompts["b"], session="b")
    rig.run("b.1", [*prompts["b"], *prompt(9, blocks(3))], session="b", tag={"last_turn": True})
    rig.run("c.0", prompts["c"], session="c")
    rig.run("d", prompts["d"], tag={"last_turn": "perhaps", "colour": 3})
    stored = {name: rig.dram_blocks(tokens) for name, tokens in prompts.items()}
    assert stored == {"a": 0, "b": 3, "c": 3, "d": 3}
    assert rig.dram_blocks([*prompts["b"], *prompt(9, blocks(3))]) == 3
    assert rig.counter("agentkv:tag_problems") == 2
    for request_id in ("a", "b.0", "b.1", "c.0", "d"):
        rig.check_answer(request_id)


def test_a89_sessions_with_equal_prefixes_share_their_blocks(make_rig: RigFactory) -> None:
    rig = make_rig()
    tokens = prompt(1, blocks(5))
    rig.run("one.0", tokens, session="one")
    assert rig.run("two.0", [*tokens, 1], session="two").gpu_hit_tokens == blocks(5)
    assert len(rig.dram.chunks) == 5


def test_a108_the_connector_is_asked_only_for_what_the_pool_lacks(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=80)
    tokens = prompt(1, 1000)
    rig.run("stored", tokens[:800], max_tokens=1)
    rig.drop_gpu_cache()
    rig.run("local", tokens[:609], max_tokens=1)
    before = (rig.external_queries, rig.external_hits)
    result = rig.run("whole", tokens, max_tokens=1)
    assert (result.gpu_hit_tokens, result.dram_hit_tokens) == (608, 192)
    asked = (rig.external_queries - before[0], rig.external_hits - before[1])
    assert asked == (1000 - 608, 192)


def test_a108_the_sources_of_a_resumed_prompt_add_up(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=24, max_num_seqs=2)
    rng = random.Random(108)
    agents = [Agent(rig, f"agent{i}", i + 1, rng.randint(1, 8)) for i in range(8)]
    num_prompt_tokens = 0
    has_begun: set[str] = set()
    for _ in range(100):
        agent = rng.choice(agents)
        if rng.random() < 0.2:
            rig.drop_gpu_cache()
        if len(agent.context) > blocks(18):
            agent.context = agent.context[: blocks(2)]
        agent.turn(tool_tokens=rng.randint(1, 60), max_tokens=rng.randint(1, 8))
        if agent.name in has_begun:
            num_prompt_tokens += len(agent.context)
        has_begun.add(agent.name)
    sources = {
        source: rig.counter("agentkv:resume_tokens", source)
        for source in ("gpu", "dram", "recomputed", "new")
    }
    assert sum(sources.values()) == num_prompt_tokens
    assert all(count > 0 for count in sources.values()), sources
