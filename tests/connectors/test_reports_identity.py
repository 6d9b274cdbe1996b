"""Public bug reports about keys: equal prefixes must meet, different ones never.

agentkv makes no keys of its own: they are vLLM's block hashes plus the KV group. These tests prove
that premise and what follows from it. Each is named after its report in `tests/BUG_REPORTS.md`.
"""

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from kit import Agent, Rig, blocks, prompt
from vllm.lora.request import LoRARequest
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from agentkv.connectors.translate import scope_of

RigFactory = Callable[..., Rig]
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "salt x": {"cache_salt": "x"},
    "salt y": {"cache_salt": "y"},
    "lora legal": {"lora_request": LoRARequest("legal", 1, "/adapters/legal")},
    "lora civil": {"lora_request": LoRARequest("civil", 2, "/adapters/civil")},
    "lora legal, other weights": {"lora_request": LoRARequest("legal", 3, "/adapters/legal-2")},
    "salt and lora": {
        "cache_salt": "x",
        "lora_request": LoRARequest("legal", 1, "/adapters/legal"),
    },
}
_PROGRAM = """
import json, os
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
init_none_hash(sha256)
hasher = get_request_block_hasher(16, sha256)
extras = [{}, {"cache_salt": "x"}, {"lora_request": LoRARequest("a", 1, "/a")}]
def keys(extra):
    request = Request("r", list(range(65)), SamplingParams(max_tokens=1), None,
                      block_hasher=hasher, **extra)
    return [key.hex() for key in request.block_hashes]
print(json.dumps([keys(extra) for extra in extras]))
"""


def test_a01_a02_another_process_gives_every_prefix_the_same_keys(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # Set, it would be a part of each key.
    other = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    rig = make_rig()
    adapter = LoRARequest("a", 1, "/a")
    kinds: list[dict[str, Any]] = [{}, {"cache_salt": "x"}, {"lora_request": adapter}]
    ours = [[key.hex() for key in rig.hashes(range(65), **fields)] for fields in kinds]
    assert [len(keys) for keys in ours] == [4, 4, 4]
    assert json.loads(other.stdout.splitlines()[-1]) == ours


def test_a01_the_dram_tier_ends_with_its_engine(make_rig: RigFactory) -> None:
    """There is no tier another process could open, so no key outlives the one that made it."""
    rig = make_rig()
    Agent(rig, "agent", 1, 4).turn()
    path = rig.primary._mmap_region.mmap_path
    assert os.path.exists(path)
    rig.clean()
    rig.is_spoilt = True
    rig.close()
    assert not os.path.exists(path)


def test_a03_the_worker_is_told_places_and_no_keys(make_rig: RigFactory) -> None:
    """Scheduler and worker cannot disagree on a key that only one of them knows."""
    rig = make_rig()
    tokens = prompt(1, blocks(4))
    rig.add("r", tokens, max_tokens=20)
    output = rig.scheduler.schedule()
    sent = output.kv_connector_metadata
    assert [type(job.dst_spec) for job in sent.store_jobs.values()] == [CPULoadStoreSpec]
    assert not any(key in pickle.dumps(sent) for key in rig.hashes(tokens))
    fresh = set(rig._fresh)
    rig._fresh.clear()
    rig._process(output, rig.runner.execute(output, fresh))
    rig.settle()


class _Keys:
    """Every key the offloading manager is asked for, on the look-up and on the store path."""

    def __init__(self, rig: Rig) -> None:
        manager = rig.connector.connector_scheduler.manager
        self.looked_up: list[bytes] = []
        self.stored: list[bytes] = []
        lookup, prepare_store = manager.lookup, manager.prepare_store

        def watched_lookup(key: bytes, context: Any, **kwargs: Any) -> Any:
            self.looked_up.append(key)
            return lookup(key, context, **kwargs)

        def watched_store(keys: Iterable[bytes], context: Any) -> Any:
            self.stored.extend(keys)
            return prepare_store(keys, context)

        manager.lookup, manager.prepare_store = watched_lookup, watched_store


def test_a10_look_up_store_and_our_own_marks_use_the_same_keys(make_rig: RigFactory) -> None:
    rig = make_rig(pool_blocks=40, dram_blocks=400, extra={"min_load_tokens": 1})
    rng = random.Random(10)
    for i in range(200):
        fields = EXTRAS[rng.choice(list(EXTRAS))]
        tokens = prompt(i, blocks(rng.randint(1, 5)) + rng.randint(0, 15))
        rig.run(f"first{i}", tokens, max_tokens=1, **fields)
        rig.drop_gpu_cache()
        keys = _Keys(rig)
        again = rig.run(f"again{i}", [*tokens, 1], max_tokens=1, **fields)
        hashes = rig.hashes(tokens, **fields)
        ours = rig.side.layout.keys(enumerate(hashes, start=1))
        assert again.dram_hit_tokens == blocks(len(hashes))
        assert keys.looked_up[: len(ours)] == ours
        rig.check_answer(f"again{i}")


def test_a10_requests_that_differ_in_one_thing_share_no_key_from_there_on(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    tokens = prompt(1, blocks(4))
    sets = {name: rig.hashes(tokens, **fields) for name, fields in EXTRAS.items()}
    for name, hashes in sets.items():
        for other, others in sets.items():
            assert name == other or not set(hashes) & set(others), (name, other)
    changed = [*tokens[: blocks(2) + 3], 1, *tokens[blocks(2) + 4 :]]
    shared = [a == b for a, b in zip(rig.hashes(tokens), rig.hashes(changed), strict=True)]
    assert shared == [True, True, False, False]


@pytest.mark.parametrize("other", [name for name in EXTRAS if name != "salt x"])
def test_a11_a_salt_keeps_tenants_apart_in_every_tier(make_rig: RigFactory, other: str) -> None:
    rig = make_rig()
    tokens = prompt(1, blocks(3) + 1)
    rig.run("x", tokens, **EXTRAS["salt x"])
    stranger = rig.run("stranger", tokens, **EXTRAS[other])
    assert stranger.gpu_hit_tokens == 0 and stranger.dram_hit_tokens == 0
    own = rig.run("own", tokens, **EXTRAS["salt x"])
    assert own.gpu_hit_tokens == blocks(3)


def test_a11_a_salted_name_cannot_steer_another_tenants_session(make_rig: RigFactory) -> None:
    rig = make_rig()
    rig.run("x", prompt(1, blocks(3)), session="agent", cache_salt="secret")
    rig.run("y", prompt(2, blocks(3)), session="agent", tag={"last_turn": True}, cache_salt="other")
    (session,) = rig.controller.sessions
    assert session.num_turns == 1, "the other tenant's last turn ended its own session only"
    request = rig.results["x"].request
    assert "secret" not in scope_of(request) and session.key.scope == scope_of(request)


def test_a11_prompt_embeddings_match_only_themselves_and_never_negatively(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    matched: list[int] = []
    match = rig.connector.get_num_new_matched_tokens

    def watched(request: Any, num_computed_tokens: int) -> Any:
        answer = match(request, num_computed_tokens)
        matched.append(answer[0])
        return answer

    rig.connector.get_num_new_matched_tokens = watched
    for seed in (1, 2):
        embeds = torch.full((blocks(3) + 1, 32), float(seed))
        result = rig.run(f"e{seed}", [], prompt_embeds=embeds, max_tokens=1)
        assert result.gpu_hit_tokens == 0
    rig.drop_gpu_cache()
    again = torch.full((blocks(3) + 1, 32), 1.0)
    assert rig.run("again", [], prompt_embeds=again, max_tokens=1).dram_hit_tokens == blocks(3)
    assert matched and min(matched) >= 0


def test_a12_adapters_never_share_kv_and_the_base_model_keeps_its_keys(
    make_rig: RigFactory,
) -> None:
    rig = make_rig()
    tokens = prompt(1, blocks(4))
    for name in ("plain", "lora legal", "lora civil"):
        result = rig.run(name, [*tokens, 1], **EXTRAS[name])
        assert result.gpu_hit_tokens == 0 and result.dram_hit_tokens == 0
    assert rig.dram_blocks(tokens) == 4, "looked up without naming any adapter"


def test_a13_other_weights_under_an_adapters_name_are_another_adapter(make_rig: RigFactory) -> None:
    rig = make_rig()
    tokens = prompt(1, blocks(4))
    rig.run("old", [*tokens, 1], **EXTRAS["lora legal"])
    rig.drop_gpu_cache()
    result = rig.run("new", [*tokens, 1], **EXTRAS["lora legal, other weights"])
    assert result.dram_hit_tokens == 0
