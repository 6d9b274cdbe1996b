"""What is unknown, missing or contradictory is refused in one line that says what to do."""

from __future__ import annotations

import re
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
    QWEN3_NEXT,
)

from agentkv.errors import ConfigError
from agentkv.passport.passport import Serving, make_passport


def refusal(data: dict[str, Any], **serving: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_passport(data, "model", Serving(**serving))
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_an_unknown_type_is_refused_with_the_nearest() -> None:
    text = refusal({**LLAMA_8B, "model_type": "qwen4"})

    assert "'qwen4' is not known" in text
    assert "nearest: qwen" in text
    assert "deepseek_v3" in text


def test_a_known_type_of_another_architecture_is_refused() -> None:
    assert "known is LlamaForCausalLM" in refusal(
        {**LLAMA_8B, "architectures": ["LlamaWithNewAttentionForCausalLM"]}
    )


@pytest.mark.parametrize(
    ("data", "lost"),
    [
        (LLAMA_8B, "num_key_value_heads"),
        (LLAMA_8B, "num_hidden_layers"),
        (LLAMA_8B, "vocab_size"),
        (LLAMA_8B, "model_type"),
        (LLAMA_8B, "architectures"),
        (LLAMA_8B, "torch_dtype"),
        (GEMMA3, "sliding_window"),
        (GEMMA3, "num_key_value_heads"),
        (GPT_OSS, "sliding_window"),
        (DEEPSEEK_V3, "kv_lora_rank"),
        (DEEPSEEK_V3, "qk_rope_head_dim"),
        (DEEPSEEK_V32, "index_head_dim"),
        (QWEN3_NEXT, "linear_num_value_heads"),
        (BAMBA, "mamba_d_state"),
        (BAMBA, "attn_layer_indices"),
        (KIMI_LINEAR, "linear_attn_config"),
        (BUILT["jamba-mini"], "attn_layer_period"),
        (BUILT["starcoder"], "multi_query"),
        (BUILT["olmo3"], "layer_types"),
        (BUILT["llama4-scout"], "attention_chunk_size"),
    ],
)
def test_a_missing_field_is_named(data: dict[str, Any], lost: str) -> None:
    text = refusal({name: value for name, value in data.items() if name != lost})

    assert f"`{lost}`" in text
    assert re.search("give|add", text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 5}, "does not divide"),
        ({"num_key_value_heads": 0}, "at least 1"),
        ({"num_hidden_layers": "32"}, "whole number"),
        ({"hidden_size": 4097}, "`head_dim` is not given"),
        ({"tie_word_embeddings": "no"}, "true or false"),
        ({"quantization_config": {"quant_method": "quip"}}, "--weights-dtype"),
        ({"torch_dtype": "int8"}, "--dtype"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], words: str) -> None:
    assert words in refusal({**LLAMA_8B, **changes})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**GPT_OSS, "layer_types": ["full_attention"] * 23}, "23 layers"),
        ({**GPT_OSS, "layer_types": ["new_attention"] * 24}, "'new_attention'"),
        ({**GPT_OSS, "num_experts_per_tok": 33}, "more than the 32 experts"),
        ({**BAMBA, "mamba_d_head": 32}, "must agree"),
        ({**KIMI_LINEAR, "num_hidden_layers": 28}, "each layer once"),
        ({**QWEN3_NEXT, "layer_types": ["mamba"] * 48}, "'mamba'"),
    ],
)
def test_contradictions_are_named(data: dict[str, Any], words: str) -> None:
    assert words in refusal(data)


@pytest.mark.parametrize(
    ("serving", "words"),
    [
        ({"kv_dtype": "int3"}, "--kv-dtype int3: not known; give one of float32"),
        ({"dtype": "fp8"}, "--dtype fp8"),
        ({"ssm_dtype": "fp8"}, "--ssm-dtype fp8"),
        ({"tensor_parallel": 3}, "--tp 3: does not divide the 32 attention heads; give 2"),
    ],
)
def test_wrong_options_are_named(serving: dict[str, Any], words: str) -> None:
    assert words in refusal(LLAMA_8B, **serving)


def test_kv_heads_that_cannot_be_split_are_named() -> None:
    data = {**LLAMA_8B, "num_attention_heads": 48, "num_key_value_heads": 6, "head_dim": 128}

    assert "--tp 4: 6 heads cannot be split so; give 3" in refusal(data, tensor_parallel=4)


def test_the_packed_layout_of_v32_is_not_guessed() -> None:
    assert "give bfloat16" in refusal(DEEPSEEK_V32, kv_dtype="fp8")
