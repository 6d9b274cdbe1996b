"""Every worked number that the formulas are known by, and the properties they must keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv import geometry as geo

KIB, MIB, GIB, GB = 2**10, 2**20, 2**30, 10**9

LLAMA_70B = geo.ModelShape(
    num_params=70e9, num_layers=80, num_query_heads=64, num_kv_heads=8, head_dim=128
)
LLAMA_8B = geo.ModelShape(
    num_params=8e9, num_layers=32, num_query_heads=32, num_kv_heads=8, head_dim=128
)
M_70B = LLAMA_70B.kv_bytes_per_token
M_8B = LLAMA_8B.kv_bytes_per_token


def test_bytes_per_token_of_known_models() -> None:
    mha = geo.ModelShape(70e9, num_layers=80, num_query_heads=64, num_kv_heads=64, head_dim=128)

    assert M_70B == 327_680
    assert M_8B == 128 * KIB
    assert mha.kv_bytes_per_token == 2560 * KIB
    assert geo.mla_bytes_per_token(61, latent_dim=512, rope_dim=64) == 68.625 * KIB


@pytest.mark.parametrize(
    ("context_tokens", "gib"), [(8192, 2.5), (32_768, 10), (131_072, 40), (1_000_000, 305.18)]
)
def test_kv_of_a_70b_context(context_tokens: int, gib: float) -> None:
    footprint = geo.KvFootprint((geo.KvGroup(M_70B),))

    assert footprint.bytes_for(context_tokens) / GIB == pytest.approx(gib, abs=0.005)


def test_weights_are_split_over_tensor_and_pipeline_ranks() -> None:
    assert geo.weights_bytes_per_device(70e9, 2, tensor_parallel=8) == 17.5 * GB
    assert geo.weights_bytes_per_device(70e9, 2, 4, 2) == 17.5 * GB


@pytest.mark.parametrize(
    ("pool_bytes", "bytes_per_token", "context_tokens", "expected"),
    [
        ((687.2 - 141.2 - 20) * GB, M_70B, 8192, 195),
        ((687.2 - 141.2 - 20) * GB, M_70B, 32_768, 48),
        ((687.2 - 141.2 - 20) * GB, M_70B, 131_072, 12),
        (480 * GIB, M_70B, 8192, 192),
        (480 * GIB, M_70B, 131_072, 12),
        (72 * GIB - 16 * GB, M_8B, 8192, 57),
        (72 * GIB - 16 * GB, M_8B, 32_768, 14),
        (72 * GIB - 16 * GB, M_8B, 131_072, 3),
        (72 * GIB - 16 * GB, M_8B, 1_000_000, 0),
    ],
)
def test_sessions_per_pool(
    pool_bytes: float, bytes_per_token: float, context_tokens: int, expected: int
) -> None:
    assert geo.max_sessions(pool_bytes, bytes_per_token, context_tokens=context_tokens) == expected


@pytest.mark.parametrize(
    ("pool_gb", "shared_tokens", "expected"),
    [(526.0, 0, 41), (526.0, 24_576, 138), (464.0, 0, 36), (464.0, 24_576, 122)],
)
def test_sessions_per_pool_with_headroom_output_and_sharing(
    pool_gb: float, shared_tokens: int, expected: int
) -> None:
    sessions = geo.max_sessions(
        pool_gb * GB,
        M_70B,
        context_tokens=32_768,
        output_tokens=2048,
        shared_tokens=shared_tokens,
        headroom_fraction=0.10,
    )

    assert sessions == expected


def test_token_capacity_of_a_pool() -> None:
    assert geo.token_capacity(464.0 * GB, M_70B) == 1_416_015


def test_a_session_without_private_tokens_has_no_limit_to_report() -> None:
    with pytest.raises(ValueError, match="private token"):
        geo.max_sessions(GIB, M_8B, context_tokens=100, shared_tokens=100)


@given(
    pool_gib=st.floats(1, 1000),
    context_tokens=st.integers(1, 10**6),
    output_tokens=st.integers(0, 10**5),
    shared=st.floats(0, 0.9),
)
def test_the_session_limit_is_where_demand_meets_the_pool(
    pool_gib: float, context_tokens: int, output_tokens: int, shared: float
) -> None:
    split = {
        "context_tokens": context_tokens,
        "output_tokens": output_tokens,
        "shared_tokens": int(shared * context_tokens),
    }
    limit = geo.max_sessions(pool_gib * GIB, M_8B, **split)

    assert geo.kv_demand_bytes(limit + 1, M_8B, **split) > pool_gib * GIB * (1 - 1e-9)
    if limit > 0:
        assert geo.kv_demand_bytes(limit, M_8B, **split) <= pool_gib * GIB * (1 + 1e-9)


def test_static_allocation_wastes_seven_eighths() -> None:
    per_session = 16_384 * 160 * KIB
    num_sessions = 10 * GIB // per_session

    assert num_sessions == 4
    assert geo.allocation_efficiency(2048, 16_384) == 0.125
    assert geo.allocation_efficiency(num_sessions * 2048 * 160 * KIB, 10 * GIB) == 0.125
    assert 1 - geo.allocation_efficiency(2048, 32_768) == 0.9375


def test_external_fragmentation_of_a_buddy_allocator() -> None:
    holes = [512 * MIB, 256 * MIB, 1024 * MIB, 768 * MIB, 1024 * MIB]

    assert geo.allocation_efficiency(4.20, 6.40) == pytest.approx(0.656, abs=5e-4)
    assert geo.external_fragmentation(holes, 1536 * MIB) == 1.0
    assert geo.external_fragmentation(holes, 1024 * MIB) == pytest.approx(1 - 2048 / 3584)
    assert geo.external_fragmentation([4 * GIB], 1536 * MIB) == 0.0
    assert geo.external_fragmentation([], MIB) == 0.0


def test_expected_tail_waste_over_allocated_and_over_useful() -> None:
    assert geo.expected_waste_ratio(2048, 16) == pytest.approx(0.00365, abs=5e-6)
    assert geo.expected_tail_waste_tokens(16) / 2048 == pytest.approx(0.00366, abs=5e-6)


@pytest.mark.parametrize(
    ("block_tokens", "block_kib", "waste_mib", "fraction"),
    [(16, 640, 75, 0.0012), (64, 2560, 315, 0.0051)],
)
def test_paging_a_60_gib_pool(
    block_tokens: int, block_kib: int, waste_mib: int, fraction: float
) -> None:
    waste = 256 * geo.expected_tail_waste_tokens(block_tokens) * 40 * KIB

    assert geo.block_bytes(40 * KIB, block_tokens) == block_kib * KIB
    assert waste == waste_mib * MIB
    assert waste / (60 * GIB) == pytest.approx(fraction, abs=5e-5)


def test_blocks_and_tokens_of_a_60_gib_pool() -> None:
    num_blocks = geo.token_capacity(60 * GIB, geo.block_bytes(40 * KIB, 16))

    assert num_blocks == 98_304
    assert num_blocks * 16 == 1_572_864


def test_only_whole_blocks_of_a_match_are_usable() -> None:
    assert geo.usable_prefix_tokens(100, 16) == 96
    assert 100 - geo.usable_prefix_tokens(100, 16) == 4


@given(num_tokens=st.integers(0, 10**7), block_tokens=st.integers(1, 1024))
def test_tail_waste_fills_the_last_block(num_tokens: int, block_tokens: int) -> None:
    waste = geo.tail_waste_tokens(num_tokens, block_tokens)

    assert 0 <= waste < block_tokens
    assert (num_tokens + waste) % block_tokens == 0


def test_a_prompt_cached_on_another_worker() -> None:
    usable = geo.usable_prefix_tokens(32_000, 16)

    assert geo.prefix_share(usable, 40_000) == 0.80
    assert 40_000 - usable == 8000
    assert geo.prefix_share(0, 0) == 0.0


def test_prefill_of_a_70b_prompt() -> None:
    total = geo.prefill_flops(LLAMA_70B, 4096, is_causal=False)
    linear = 2 * LLAMA_70B.num_params * 4096

    assert linear / 1e12 == pytest.approx(573.4, abs=0.05)
    assert (total - linear) / 1e12 == pytest.approx(44.0, abs=0.05)
    assert total / 1e12 == pytest.approx(617.4, abs=0.05)
    assert total / 3560e12 * 1e3 == pytest.approx(173.4, abs=0.05)
    assert 4096 * M_70B == 1.25 * GIB


def test_prefill_of_an_8b_suffix_still_attends_to_its_prefix() -> None:
    full = geo.prefill_flops(LLAMA_8B, 8192)
    suffix = geo.prefill_flops(LLAMA_8B, 512, cached_tokens=7680)

    assert 2 * LLAMA_8B.num_params * 8192 / 990e12 * 1e3 == pytest.approx(132.396, abs=5e-4)
    assert 2 * LLAMA_8B.num_params * 512 / 990e12 * 1e3 == pytest.approx(8.275, abs=5e-4)
    assert full / 990e12 * 1e3 == pytest.approx(150.168, abs=5e-4)
    assert suffix / 990e12 * 1e3 == pytest.approx(10.427, abs=5e-4)
    assert full / suffix == pytest.approx(14.402, abs=5e-4)


def test_recompute_time_counts_two_operations_per_parameter() -> None:
    assert geo.recompute_linear_s(70e9, 16_384, 400e12) == pytest.approx(5.735, abs=5e-3)


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=8))
def test_prefill_in_chunks_does_the_same_work(chunks: list[int]) -> None:
    work, cached = 0.0, 0
    for chunk in chunks:
        work += geo.prefill_flops(LLAMA_8B, chunk, cached)
        cached += chunk

    assert work == pytest.approx(geo.prefill_flops(LLAMA_8B, cached))


@pytest.mark.parametrize(
    ("context_tokens", "tokens_per_s"), [(0, 209.4), (131_072, 101.0), (1_000_000, 22.8)]
)
def test_bandwidth_bounds_decode(context_tokens: int, tokens_per_s: float) -> None:
    ceiling = geo.decode_ceiling_tokens_per_s(3.35e12, 16 * GB, 1, context_tokens * M_8B)

    assert ceiling == pytest.approx(tokens_per_s, abs=0.05)


def test_a_batch_of_32_pays_for_its_kv() -> None:
    with_kv = geo.decode_ceiling_tokens_per_s(3.35e12, 16 * GB, 32, 8192 * M_8B)
    without = geo.decode_ceiling_tokens_per_s(3.35e12, 16 * GB, 32, 0)

    assert with_kv == pytest.approx(2128.7, abs=0.05)
    assert without == 6700
    assert without / with_kv == pytest.approx(3.15, abs=0.005)
    assert 32 / with_kv * 1e3 == pytest.approx(15.03, abs=0.005)


@pytest.mark.parametrize(
    ("context_tokens", "batch"), [(8192, 14.9), (32_768, 3.7), (131_072, 0.93)]
)
def test_batch_from_which_kv_outweighs_weights(context_tokens: int, batch: float) -> None:
    rounding = 0.005 if batch < 1 else 0.05

    assert geo.decode_balance_batch(16 * GB, context_tokens * M_8B) == pytest.approx(
        batch, abs=rounding
    )


def test_decode_of_a_long_context_is_bound_by_memory() -> None:
    flops = geo.decode_flops(LLAMA_8B, 1, 131_072)
    read_bytes = geo.decode_read_bytes(16 * GB, 1, 131_072, M_8B)
    ridge = 990 / 3.35

    assert flops / 1e9 == pytest.approx(84.7195, abs=5e-5)
    assert flops / read_bytes == pytest.approx(2.55334, abs=5e-6)
    assert ridge == pytest.approx(295.522, abs=5e-4)
    assert ridge / (flops / read_bytes) == pytest.approx(115.74, abs=0.005)
    assert geo.decode_flops(LLAMA_8B, 1, 0) / read_bytes == pytest.approx(0.48222, abs=5e-6)


def test_three_bit_kv_raises_the_decode_ceiling() -> None:
    full = geo.decode_ceiling_tokens_per_s(3.35e12, 16 * GB, 1, 131_072 * M_8B)
    packed = geo.decode_ceiling_tokens_per_s(3.35e12, 16 * GB, 1, 131_072 * M_8B * 0.1875)

    assert full == pytest.approx(101, abs=0.5)
    assert packed == pytest.approx(174, abs=0.5)


def test_a_sliding_window_stops_growing() -> None:
    group = geo.KvGroup(bytes_per_token=1000, window_tokens=4096)

    assert [group.positions(n) for n in (1, 4096, 100_000)] == [1, 4096, 4096]


def test_a_hybrid_adds_fixed_state_window_and_full_attention() -> None:
    footprint = geo.KvFootprint(
        groups=(geo.KvGroup(100.0), geo.KvGroup(1000.0, window_tokens=50)), fixed_bytes=7
    )

    assert footprint.bytes_for(0) == 0
    assert footprint.bytes_for(10) == 7 + 10 * 1100
    assert footprint.bytes_for(1000) == 7 + 1000 * 100 + 50 * 1000
    assert footprint.unbounded_bytes_per_token == 100.0


def test_fractional_bytes_are_rounded_up_once() -> None:
    footprint = geo.KvFootprint(groups=(geo.KvGroup(0.5), geo.KvGroup(0.25)))

    assert footprint.bytes_for(3) == 3  # 2.25
