"""The worked numbers of a passport: bytes per token, contexts, rooflines, published sizes."""

from __future__ import annotations

from typing import Any

import pytest
from passport.configs import (
    BAMBA,
    BUILT,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GEMMA3,
    GPT_OSS,
    KIMI_LINEAR,
    LLAMA_8B,
    LLAMA_70B,
    QWEN3_NEXT,
)

from agentkv.geometry import attended_pairs, decode_ceiling_tokens_per_s
from agentkv.passport.accelerators import ACCELERATORS
from agentkv.passport.layers import Kind
from agentkv.passport.parameters import Parameters
from agentkv.passport.passport import Passport, Serving, make_passport
from agentkv.passport.roofline import decode_flops, prefill_flops, windowed_pairs
from agentkv.passport.weights import Weights

KIB, GIB, GB = 2**10, 2**30, 10**9


def passport(data: dict[str, Any], **serving: Any) -> Passport:
    return make_passport(data, "model", Serving(**serving))


def test_bytes_per_token_of_the_documents() -> None:
    mha = {**LLAMA_70B, "num_key_value_heads": 64}

    assert passport(LLAMA_70B).bytes_per_token == 327_680
    assert passport(mha).bytes_per_token == 2560 * KIB
    assert passport(LLAMA_8B).bytes_per_token == 128 * KIB
    assert passport(DEEPSEEK_V3).bytes_per_token == 68.625 * KIB


@pytest.mark.parametrize(
    ("context_tokens", "gib"), [(8192, 2.5), (32_768, 10), (131_072, 40), (1_000_000, 305.18)]
)
def test_what_a_context_of_a_70b_takes(context_tokens: int, gib: float) -> None:
    kept = passport(LLAMA_70B).footprint.bytes_for(context_tokens)

    assert kept / GIB == pytest.approx(gib, abs=0.005)


def test_a_device_of_eight_keeps_40_kib_and_a_block_of_it_640() -> None:
    found = passport(LLAMA_70B, tensor_parallel=8)

    assert found.device_groups[0].bytes_per_token == 40 * KIB
    assert found.device_groups[0].bytes_per_token * found.block_tokens == 640 * KIB


@pytest.mark.parametrize(
    ("context_tokens", "tokens_per_s"), [(0, 209.4), (131_072, 101.0), (1_000_000, 22.8)]
)
def test_decode_ceilings_of_an_8b(context_tokens: int, tokens_per_s: float) -> None:
    kept = passport(LLAMA_8B).footprint.bytes_for(context_tokens)
    bandwidth = ACCELERATORS["h100"].bytes_per_s

    ceiling = decode_ceiling_tokens_per_s(bandwidth, 16 * GB, 1, kept)

    assert ceiling == pytest.approx(tokens_per_s, abs=0.05)


def test_the_roofline_takes_the_worked_decode_step_of_an_8b() -> None:
    """The documents take P = 8e9 and W = 16 GB, rounded; all else is the passport's."""
    found = passport(LLAMA_8B)
    flops = decode_flops(found.layers, 8e9, 1, 131_072)
    intensity = flops / (16 * GB + found.footprint.bytes_for(131_072))

    assert flops / 1e9 == pytest.approx(84.7195, abs=5e-5)
    assert intensity == pytest.approx(2.55334, abs=5e-6)
    assert ACCELERATORS["h100"].ridge == pytest.approx(295.522, abs=5e-4)
    assert ACCELERATORS["h100"].ridge / intensity == pytest.approx(115.74, abs=5e-3)


def test_the_roofline_takes_the_worked_prefills_of_an_8b() -> None:
    layers, peak = passport(LLAMA_8B).layers, ACCELERATORS["h100"].flops_per_s
    full_ms = 1e3 * prefill_flops(layers, 8e9, 8192) / peak
    suffix_ms = 1e3 * prefill_flops(layers, 8e9, 512, 7680) / peak

    assert full_ms == pytest.approx(150.168, abs=5e-4)
    assert suffix_ms == pytest.approx(10.427, abs=5e-4)
    assert full_ms / suffix_ms == pytest.approx(14.402, abs=5e-4)


def test_bounds_of_a_whole_passport() -> None:
    found = passport(LLAMA_8B)
    (point,) = found.roofline(ACCELERATORS["h100"], [131_072]).points
    read = 8_030_261_248 * 2 - 128_256 * 4096 * 2 + 131_072 * 128 * KIB

    assert point.decode_bytes == read
    assert point.tokens_per_s == pytest.approx(3.35e12 / read)
    assert point.prefill_s == pytest.approx(
        (2 * 8_030_261_248 * 131_072 + 32 * 4 * 4096 * attended_pairs(131_072)) / 990e12
    )


def test_what_is_repeated_on_each_device_is_read_by_each() -> None:
    """MLA is not split by tensor parallelism, so eight devices do not read its KV faster."""
    (one,) = passport(DEEPSEEK_V3).roofline(ACCELERATORS["h100"], [131_072]).points
    (eight,) = (
        passport(DEEPSEEK_V3, tensor_parallel=8).roofline(ACCELERATORS["h100"], [131_072]).points
    )
    kept = passport(DEEPSEEK_V3).footprint.bytes_for(131_072)

    assert eight.decode_bytes - one.decode_bytes == pytest.approx(7 * kept)


@pytest.mark.parametrize("window", [1, 5, 16, 40])
@pytest.mark.parametrize("cached", [0, 3, 30])
def test_pairs_of_a_window_are_those_counted_one_by_one(window: int, cached: int) -> None:
    counted = sum(min(cached + i + 1, window) for i in range(16))

    assert windowed_pairs(16, cached, window) == pytest.approx(max(counted, 0))


@pytest.mark.parametrize(
    ("data", "billions", "active"),
    [
        (LLAMA_8B, 8.030261248, None),
        (LLAMA_70B, 70.553706496, None),
        (BUILT["mistral-7b"], 7.241732096, None),
        (BUILT["mixtral-8x7b"], 46.702792704, 12.88),
        (BUILT["qwen3-8b"], 8.190735360, None),
        (BUILT["qwen3-30b-a3b"], 30.532122624, 3.35),
        (BUILT["phi3-mini"], 3.821079552, None),
        (BUILT["gemma2-9b"], 9.241705984, None),
        (GPT_OSS, 20.9148, 4.19),
        (DEEPSEEK_V3, 671.026419200, 37.55),
        (KIMI_LINEAR, 49.1227, 3.48),
    ],
)
def test_published_parameter_counts(
    data: dict[str, Any], billions: float, active: float | None
) -> None:
    parameters = passport(data).weights.parameters

    assert parameters.total / 1e9 == pytest.approx(billions, abs=5e-5)
    assert parameters.active / 1e9 == pytest.approx(active or billions, abs=0.01)


def test_windows_stop_growing() -> None:
    found = passport(GEMMA3)
    window, full = sorted(found.groups, key=lambda group: group.kind is Kind.FULL)

    assert (window.num_layers, full.num_layers) == (22, 4)
    assert found.bytes_per_token == 26 * KIB
    assert found.growth_bytes_per_token == 4 * KIB
    assert found.window_bytes == 512 * 22 * KIB
    assert found.footprint.bytes_for(512) == 512 * 26 * KIB
    assert found.footprint.bytes_for(10_512) == 512 * 26 * KIB + 10_000 * 4 * KIB


def test_a_window_in_the_config_of_a_llama_is_taken_as_vllm_takes_it() -> None:
    found = passport({**LLAMA_8B, "sliding_window": 4096})

    assert [group.window_tokens for group in found.groups] == [4096]


def test_a_hybrid_has_fixed_bytes_whatever_its_context() -> None:
    found = passport(QWEN3_NEXT)
    state = 3 * 8192 * 2 + 32 * 128 * 128 * 2

    assert found.fixed_bytes == 36 * state
    assert found.bytes_per_token == 12 * 2 * 2 * 256 * 2
    assert found.footprint.bytes_for(1000) == 36 * state + 1000 * found.bytes_per_token


def test_states_of_kimi_linear_are_wide_and_its_attention_is_latent() -> None:
    found = passport(KIMI_LINEAR)

    assert found.fixed_bytes == 20 * (3 * 3 * 4096 * 2 + 32 * 128 * 128 * 4)
    assert found.bytes_per_token == 7 * 576 * 2
    assert found.block_tokens % 128 == 0
    assert found.block_tokens * 576 * 2 * 2 >= found.fixed_bytes / 20


def test_bamba_keeps_its_named_attention_layers() -> None:
    found = passport(BAMBA)

    assert found.bytes_per_token == 3 * 2 * 8 * 128 * 2
    assert found.fixed_bytes == 29 * (3 * (8192 + 256) + 128 * 64 * 128) * 2


def test_the_indexer_of_v32_has_bytes_of_its_own() -> None:
    v3, v32 = passport(DEEPSEEK_V3), passport(DEEPSEEK_V32)

    assert v32.bytes_per_token - v3.bytes_per_token == 61 * (128 + 4)


def test_fp8_halves_the_kv_and_leaves_states() -> None:
    plain, quantised = passport(QWEN3_NEXT), passport(QWEN3_NEXT, kv_dtype="fp8")

    assert quantised.bytes_per_token == plain.bytes_per_token / 2
    assert quantised.fixed_bytes == plain.fixed_bytes


def test_gemma_3_of_four_billions_is_told_by_its_architecture() -> None:
    """Its published config.json has a text_config with hardly a field, and says so."""
    data = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    found = passport(data)

    assert found.weights.parameters.total == 3_880_263_168
    assert found.growth_bytes_per_token == 5 * 2 * 4 * 256 * 2
    assert found.assumed["num_key_value_heads"] == 4
    assert "towers are not counted" in found.notes[0]


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
            },
            8,
        ),
    ],
)
def test_quantised_weights(quantization: dict[str, Any], bits: float) -> None:
    found = passport({**LLAMA_8B, "quantization_config": quantization}).weights
    p = found.parameters

    assert found.bytes == pytest.approx(p.matrices * bits / 8 + 2 * (p.table + p.head + p.vectors))


def test_experts_of_gpt_oss_are_in_mxfp4() -> None:
    """Its published checkpoint has 13.76 GB."""
    found = passport({**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}).weights

    assert found.bytes / GB == pytest.approx(13.76, abs=0.01)


def test_a_batch_reads_more_experts_until_it_reads_all() -> None:
    weights = passport(GPT_OSS).weights
    one, many = weights.read_bytes(1), weights.read_bytes(1000)
    experts = weights.parameters.experts * 2

    assert one == pytest.approx(weights.read_bytes(None) - experts * (1 - 4 / 32))
    assert many == pytest.approx(weights.read_bytes(None))


def test_a_tied_table_is_read_as_the_head() -> None:
    tied = Weights(Parameters(table=10, vectors=1), "bfloat16", 16, 16, 2)
    apart = Weights(Parameters(table=10, head=10, vectors=1), "bfloat16", 16, 16, 2)

    assert (tied.bytes, tied.read_bytes()) == (22, 22)
    assert (apart.bytes, apart.read_bytes()) == (42, 22)
