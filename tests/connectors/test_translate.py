"""From vLLM's cache specs and requests to ours."""

import pytest
import torch
from kit import prompt
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import Request

from agentkv.connectors.translate import computed_hashes, footprint_of, scope_of, tag_of

HALF = torch.float16
GQA = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype=HALF)
MLA = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
WINDOW = SlidingWindowSpec(
    block_size=16, num_kv_heads=8, head_size=128, dtype=HALF, sliding_window=1024
)
LOCAL = ChunkedLocalAttentionSpec(
    block_size=16, num_kv_heads=8, head_size=128, dtype=HALF, attention_chunk_size=8192
)
MAMBA = MambaSpec(block_size=2096, shapes=((64, 128, 4),), dtypes=(torch.float32,))


def _config(*groups: tuple[KVCacheSpec, int]) -> KVCacheConfig:
    specs = [
        KVCacheGroupSpec([f"{number}.{layer}" for layer in range(num_layers)], spec)
        for number, (spec, num_layers) in enumerate(groups)
    ]
    return KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=specs)


def test_grouped_query_attention_takes_two_vectors_a_head_and_layer() -> None:
    footprint = footprint_of(_config((GQA, 32)))
    per_token = 2 * 32 * 8 * 128 * 2
    assert footprint.bytes_for(1000) == 1000 * per_token
    assert footprint.unbounded_bytes_per_token == per_token and footprint.fixed_bytes == 0


def test_latent_attention_takes_one_latent_a_layer() -> None:
    footprint = footprint_of(_config((MLA, 61)))
    assert footprint.bytes_for(1000) == 1000 * 61 * 576 * 2


@pytest.mark.parametrize(("spec", "kept_tokens"), [(WINDOW, 1024), (LOCAL, 8192)])
def test_a_window_stops_growing(spec: KVCacheSpec, kept_tokens: int) -> None:
    footprint = footprint_of(_config((GQA, 4), (spec, 12)))
    per_layer_token = 2 * 8 * 128 * 2
    assert footprint.bytes_for(100) == 100 * 16 * per_layer_token
    assert footprint.bytes_for(20_000) == (20_000 * 4 + kept_tokens * 12) * per_layer_token
    assert footprint.unbounded_bytes_per_token == 4 * per_layer_token


def test_a_recurrent_state_has_a_fixed_size() -> None:
    footprint = footprint_of(_config((GQA, 4), (MAMBA, 36)))
    state_bytes = 36 * 64 * 128 * 4 * 4
    assert footprint.fixed_bytes == state_bytes
    assert footprint.bytes_for(10) == state_bytes + 10 * 4 * 2 * 8 * 128 * 2


def test_layers_of_different_sizes_in_one_group_are_added_up() -> None:
    wide = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=256, dtype=HALF)
    uniform = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"0.0": GQA, "0.1": wide})
    footprint = footprint_of(_config((uniform, 2)))
    assert footprint.bytes_for(10) == 10 * 2 * 8 * (128 + 256) * 2


def _request(num_tokens: int = 40, **fields: object) -> Request:
    init_none_hash(sha256)
    sampling = SamplingParams(max_tokens=4, extra_args=fields.pop("extra_args", None))  # type: ignore[arg-type]
    hasher = get_request_block_hasher(16, sha256)
    return Request("r", prompt(1, num_tokens), sampling, None, block_hasher=hasher, **fields)  # type: ignore[arg-type]


def test_no_salt_is_no_scope() -> None:
    assert scope_of(_request()) == "" == scope_of(_request(cache_salt=""))


@pytest.mark.parametrize("salt", ["a", "tenant-1", "x" * 500, "7f", "ü"])
def test_a_scope_tells_salts_apart_and_never_contains_them(salt: str) -> None:
    scope = scope_of(_request(cache_salt=salt))
    assert scope == scope_of(_request(cache_salt=salt)) != scope_of(_request(cache_salt=salt + "."))
    assert len(scope) == 16 and (len(salt) <= 2 or salt not in scope)


def test_the_tag_comes_from_the_transfer_parameters_or_the_flat_extras() -> None:
    params = {"kv_transfer_params": {"agentkv": {"tool": "bash"}}}
    assert tag_of(_request(extra_args=params))[0].tool == "bash"
    assert tag_of(_request(extra_args={"agentkv.tool": "grep"}))[0].tool == "grep"
    assert tag_of(_request()) == tag_of(_request(extra_args={}))


def test_only_full_blocks_that_were_computed_count() -> None:
    request = _request(40)
    for num_computed, num_blocks in ((0, 0), (15, 0), (16, 1), (39, 2), (40, 2), (99, 2)):
        request.num_computed_tokens = num_computed
        assert computed_hashes(request, 16) == list(request.block_hashes[:num_blocks])
