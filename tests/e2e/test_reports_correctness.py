"""Public bug reports about wrong tokens, hits and keys, each tried on a real engine.

The numbers refer to tests/BUG_REPORTS.md; "B" there is a KV block, here of 32 tokens.
"""

import random
import time
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus

from agentkv.connectors.cpu_worker import CpuCopyWorker
from agentkv.connectors.host_copies import PageCopies

from .checks import assert_exact
from .conftest import StartEngine
from .engine import BLOCK_TOKENS as B
from .engine import Answer, Ask, Engine, chain, prompt_of


def poison_pool(engine: Engine) -> None:
    """Fills every block of an idle pool with 13 million: KV that is read unwritten shows.

    Not with NaN: vLLM's CPU attention reads whole blocks and multiplies what it masks by zero.
    """
    for pages in engine.copier.copies._pages:
        pages[1:] = 0x4B


def jitter(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, seed: int, longest_s: float) -> None:
    """Makes every layer's copy take a random time, so that threads meet in other orders."""
    rng = random.Random(seed)
    copy_tensor = engine.copier.copies._copy

    def delayed(tensor: int, copies: PageCopies, *, kind: int) -> None:
        time.sleep(rng.uniform(0, longest_s))
        copy_tensor(tensor, copies, kind=kind)

    monkeypatch.setattr(engine.copier.copies, "_copy", delayed)


def test_a25_the_same_answers_under_load_whatever_the_threads_do(
    base: Engine, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunks = [prompt_of(i, 3 * B) for i in range(3)]
    prompts = [chain(trunks[i % 3], prompt_of(10 + i, (2 + i % 8) * B + i)) for i in range(24)]
    want = base.run([Ask(str(i), prompt) for i, prompt in enumerate(prompts)])
    engine = start(num_blocks=64)
    for seed in range(20):
        with monkeypatch.context() as patch:
            jitter(engine, patch, seed=seed, longest_s=0.0005)
            engine.reset()
            loaded_before = engine.loaded_blocks
            for _ in range(3):
                got = engine.run([Ask(str(i), prompt) for i, prompt in enumerate(prompts)])
                assert_exact(want, got)
            assert engine.loaded_blocks > loaded_before


def test_a25_a_block_is_not_computed_over_before_it_is_stored(
    base: Engine, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow stores, and a pool whose blocks are all taken again at once."""
    asks = [Ask(str(i), prompt_of(i, 8 * B + 5), 4) for i in range(16)]
    want = base.run(asks)
    engine = start(num_blocks=34)
    with monkeypatch.context() as patch:
        jitter(engine, patch, seed=0, longest_s=0.02)
        assert_exact(want, engine.run(asks, concurrency=4))
    engine.forget_pool()
    assert_exact(want, engine.run(asks, concurrency=4))
    assert engine.loaded_blocks >= 16 * 8


def test_a27_what_a_preempted_turn_had_answered_is_stored_and_found(
    base: Engine, start: StartEngine
) -> None:
    engine = start(num_blocks=40)
    ask = Ask("r", prompt_of(1, 80), 70, session="s")
    num_preempted = 0

    def preempt(engine: Engine) -> None:
        nonlocal num_preempted
        request = next(iter(engine.scheduler.running), None)
        if request is not None and request.num_output_tokens == 50 and not num_preempted:
            engine.preempt_all()
            num_preempted += 1

    got = engine.run([ask], on_step=preempt)
    assert num_preempted == 1
    assert_exact({"r": base.ask(ask)}, got)
    # 80 + 49 computed tokens are 4 blocks; when it resumes they come from DRAM.
    assert engine.loaded_blocks == 4
    assert engine.stored_blocks == len(engine.dram.chunks) == (80 + 69) // B, "stored twice"


def computed_tokens(engine: Engine, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> int:
    """Prompt tokens that the engine really computes for a request."""
    scheduled: list[int] = []
    schedule = engine.scheduler.schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        scheduled.append(sum(output.num_scheduled_tokens.values()))
        return output

    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "schedule", counted)
        answer = engine.ask(ask)
    return sum(scheduled) - (len(answer.tokens) - 1)


@pytest.mark.parametrize("num_tokens", [4 * B, 4 * B + 1, 4 * B - 1])
def test_a28_a_prompt_that_is_wholly_in_dram_still_computes_a_token(
    base: Engine, engine: Engine, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    ask = Ask("r", prompt_of(num_tokens, num_tokens))
    engine.ask(ask)
    for _ in range(2):
        engine.forget_pool()
        poison_pool(engine)
        assert_exact({"r": base.ask(ask)}, {"r": engine.ask(ask)})
        engine.forget_pool()
        assert computed_tokens(engine, ask, monkeypatch) == max(1, num_tokens % B)


def test_a28_half_in_the_pool_and_half_in_dram(
    base: Engine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Ask("r", prompt_of(1, 4 * B), session="s")
    engine.ask(ask)
    for _ in range(2):
        engine.forget_pool()
        engine.ask(Ask("head", ask.prompt[: 2 * B + 1]))
        assert_exact({"r": base.ask(ask)}, {"r": engine.ask(ask)})
        engine.forget_pool()
        engine.ask(Ask("head", ask.prompt[: 2 * B + 1]))
        assert computed_tokens(engine, ask, monkeypatch) == 1
    resume = engine.ledger("resume")[-1]
    assert (resume["gpu_hit_tokens"], resume["dram_hit_tokens"]) == (2 * B, 2 * B)


def test_a29_dram_hits_are_whole_blocks_and_no_unwritten_kv_is_read(
    base: Engine, engine: Engine
) -> None:
    asks = [Ask(f"r{n}", prompt_of(n, n), session=f"s{n}") for n in range(B - 1, 5 * B, 7)]
    engine.run(asks)
    engine.forget_pool()
    poison_pool(engine)
    assert_exact(base.run(asks), engine.run(asks))
    hits = [resume["dram_hit_tokens"] for resume in engine.ledger("resume")]
    assert max(hits) == 4 * B
    assert all(hit % B == 0 for hit in hits)


def test_a59_no_answer_is_another_prompts(base: Engine, start: StartEngine) -> None:
    engine = start({"dram": {"size_bytes": "64MiB"}}, num_blocks=64)
    asks = [Ask(f"r{i}", prompt_of(i, B + 100 + 5 * i), session=f"s{i}") for i in range(40)]
    want = base.run(asks)
    for seed in range(3):
        order = random.Random(seed).sample(asks, len(asks))
        assert_exact(want, engine.run(order))
    assert engine.loaded_blocks > 0


@pytest.mark.parametrize("num_chunks", [(1 << 15) + 8, (1 << 16) + 8])
def test_a59_places_beyond_16_bits_are_not_confused(num_chunks: int) -> None:
    """Each block carries its number; a place that is used twice loses one of them."""
    page_bytes, num_blocks = 8, 9
    cache = torch.zeros((num_blocks, page_bytes), dtype=torch.int8)
    dram = torch.zeros((num_chunks, page_bytes), dtype=torch.int8)
    worker = CpuCopyWorker(
        CanonicalKVCaches(
            tensors=[CanonicalKVCacheTensor(tensor=cache, page_size_bytes=page_bytes)],
            group_data_refs=[[CanonicalKVCacheRef(tensor_idx=0, page_size_bytes=page_bytes)]],
        ),
        blocks_per_chunk=1,
        make_dram_view=lambda num_bytes: dram,
        num_threads=2,
    )
    low = range(4)
    high = range(num_chunks - 4, num_chunks)
    cache[1:] = torch.arange(1, num_blocks, dtype=torch.int8)[:, None]
    blocks = GPULoadStoreSpec(list(range(1, num_blocks)), [8], [0])
    places = CPULoadStoreSpec([*low, *high])
    worker.submit_store(1, blocks, places)
    worker.wait({1})
    cache.zero_()
    worker.submit_load(2, places, blocks)
    worker.wait({2})
    worker.shutdown()
    assert cache[1:, 0].tolist() == list(range(1, num_blocks))
    assert not worker.take_refused()
    assert ChunkStatus(num_chunks - 1).chunk_id == num_chunks - 1


@pytest.mark.parametrize(
    ("num_decoded", "store_decode", "num_stored", "num_hit"),
    [(80, False, 2, 2), (80, True, 4, 4), (81, True, 5, 5)],
)
def test_a83_answers_are_stored_or_not_as_set(
    base: Engine,
    start: StartEngine,
    num_decoded: int,
    store_decode: bool,
    num_stored: int,
    num_hit: int,
) -> None:
    """80 + 80 tokens: the last one has no KV yet, so 159 are 4 blocks; one more makes it 5."""
    engine = start({"store_decode_blocks": store_decode})
    first = Ask("t1", prompt_of(1, 80), num_decoded, session="s")
    answer = engine.ask(first)
    assert len(engine.dram.chunks) == engine.stored_blocks == num_stored
    engine.forget_pool()
    second = Ask("t2", chain(first.prompt, answer.tokens, prompt_of(2, 40)), session="s")
    resumed = engine.ask(second)
    assert resumed.cached_tokens == num_hit * B
    assert_exact({"t1": base.ask(first)}, {"t1": answer})
    assert_exact({"t2": base.ask(second)}, {"t2": resumed})


def test_a94_a_retokenised_tail_matches_up_to_the_difference(base: Engine, engine: Engine) -> None:
    first = Ask("t1", prompt_of(1, 5 * B), 4 * B, session="s")
    answer = engine.ask(first)
    # The client's text splits into other tokens from the 40th answered one on.
    tail = tuple(4 + (token + 1) % 490 for token in answer.tokens[40:])
    second = Ask("t2", chain(first.prompt, answer.tokens[:40], tail), session="s")
    num_alike = (5 * B + 40) // B
    held = engine.ask(second)
    engine.forget_pool()
    swapped = engine.ask(replace(second, session="other"))
    want = {"t2": base.ask(second)}
    assert_exact(want, {"t2": held})
    assert_exact(want, {"t2": swapped})
    (resume,) = engine.ledger("resume")
    assert resume["gpu_hit_tokens"] == num_alike * B
    assert resume["recomputed_tokens"] == 0, "the tail was not known in this form"
    # What the first turn computed beyond the difference is superseded.
    assert engine.count("agentkv:given_up_blocks", reason="dead") == 8 - num_alike


def test_a107_everything_stays_on_the_cpu_that_holds_the_cache(engine: Engine) -> None:
    assert not torch.cuda.is_available()
    runner = engine._core.model_executor.driver_worker.worker.model_runner
    caches = {cache.data_ptr(): cache for cache in runner.kv_caches}
    assert {cache.device.type for cache in caches.values()} == {"cpu"}
    ask = Ask("r", prompt_of(1, 3 * B + 1), 1)
    engine.ask(ask)
    before = [cache.clone() for cache in caches.values()]
    engine.forget_pool()
    poison_pool(engine)
    engine.ask(ask)
    for cache, old in zip(caches.values(), before, strict=True):
        rows = {row.numpy().tobytes() for row in old}
        kept = [row for row in cache if row.numpy().tobytes() in rows]
        assert len(kept) >= 3, "loaded elsewhere"


def test_a109_prompt_logprobs_neither_look_up_nor_load(
    base: Engine, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Ask("r", prompt_of(1, 4 * B), sampling={"prompt_logprobs": 1})
    want = base.ask(ask)
    manager = engine.connector.connector_scheduler.manager
    look_up = mock.Mock(wraps=manager.lookup)
    monkeypatch.setattr(manager, "lookup", look_up)
    for _ in range(3):
        engine.forget_pool()
        got = engine.ask(ask)
        assert_exact({"r": want}, {"r": got})
        assert len(got.prompt_logprobs) == 4 * B - 1
        assert np.allclose(got.prompt_logprobs, want.prompt_logprobs, atol=1e-4)
        assert got.cached_tokens == 0
    assert engine.loaded_blocks == 0
    assert not look_up.called
    assert engine.count("vllm:external_prefix_cache_hits") == 0


def test_answers_differ_between_prompts(base: Engine) -> None:
    """Guards the other tests: a model that answers everything alike would pass them all."""
    answers: list[Answer] = list(
        base.run([Ask(str(i), prompt_of(i, 100)) for i in range(16)]).values()
    )
    assert len({answer.tokens for answer in answers}) == 16
