"""Configs of published models, with the fields that say what their layers keep and weigh.

Full size: vLLM builds them on no memory at all (torch's meta device). Vocabularies are multiples of
64, so that vLLM does not pad them.
"""

from __future__ import annotations

from typing import Any


def config(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    """A config.json with what all have in common."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        **{"max_position_embeddings": 32_768, **fields},
    }


def shape(hidden: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> dict[str, Any]:
    """The dimensions under their usual names."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **fields,
    }


def latent(rope: int = 64, **fields: Any) -> dict[str, Any]:
    """MLA as in DeepSeek."""
    return {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        **fields,
    }


def mamba2(heads: int, head_dim: int, state: int, groups: int = 1) -> dict[str, Any]:
    """Mamba 2 as in Bamba, Granite 4 and Falcon H1."""
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": head_dim,
        "mamba_d_state": state,
        "mamba_n_groups": groups,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_chunk_size": 256,
    }


LLAMA_70B = config(
    "LlamaForCausalLM",
    "llama",
    **shape(8192, 80, 64, 8, intermediate_size=28_672, vocab_size=128_256),
    tie_word_embeddings=False,
)
LLAMA_8B = {
    **LLAMA_70B,
    **shape(4096, 32, 32, 8, intermediate_size=14_336, vocab_size=128_256),
}
_GEMMA = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
GEMMA3 = config(
    "Gemma3ForCausalLM",
    "gemma3_text",
    **shape(1152, 26, 4, 1, intermediate_size=6912, head_dim=256, vocab_size=262_144),
    **_GEMMA,
    sliding_window=512,
    sliding_window_pattern=6,
)
GPT_OSS = config(
    "GptOssForCausalLM",
    "gpt_oss",
    **shape(2880, 24, 64, 8, intermediate_size=2880, head_dim=64, vocab_size=201_088),
    num_local_experts=32,
    num_experts_per_tok=4,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
    tie_word_embeddings=False,
)
DEEPSEEK_V3 = config(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    **shape(7168, 61, 128, 128, intermediate_size=18_432, vocab_size=129_280),
    **latent(q_lora_rank=1536),
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    n_group=8,
    topk_group=4,
    topk_method="noaux_tc",
    tie_word_embeddings=False,
)
DEEPSEEK_V32 = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}
QWEN3_NEXT = config(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    **shape(2048, 48, 16, 2, intermediate_size=5120, head_dim=256, vocab_size=151_936),
    full_attention_interval=4,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    decoder_sparse_step=1,
    tie_word_embeddings=False,
)
BAMBA = config(
    "BambaForCausalLM",
    "bamba",
    **shape(4096, 32, 32, 8, intermediate_size=14_336, vocab_size=128_256),
    **mamba2(128, 64, 128),
    attn_layer_indices=[9, 18, 27],
    tie_word_embeddings=False,
)
KIMI_LINEAR = config(
    "KimiLinearForCausalLM",
    "kimi_linear",
    **shape(2304, 27, 32, 32, intermediate_size=9216, vocab_size=163_840),
    **latent(q_lora_rank=None),
    linear_attn_config={
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [n for n in range(1, 27) if n % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    first_k_dense_replace=1,
    num_experts=256,
    num_experts_per_token=8,
    num_shared_experts=1,
    moe_intermediate_size=1024,
    tie_word_embeddings=False,
)

BUILT: dict[str, dict[str, Any]] = {
    "llama-70b": LLAMA_70B,
    "mistral-7b": config(
        "MistralForCausalLM",
        "mistral",
        **shape(4096, 32, 32, 8, intermediate_size=14_336, vocab_size=32_000),
        sliding_window=4096,
    ),
    "mixtral-8x7b": config(
        "MixtralForCausalLM",
        "mixtral",
        **shape(4096, 32, 32, 8, intermediate_size=14_336, vocab_size=32_000),
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=None,
    ),
    "qwen2-7b": config(
        "Qwen2ForCausalLM",
        "qwen2",
        **shape(3584, 28, 28, 4, intermediate_size=18_944, vocab_size=152_064),
        use_sliding_window=False,
        sliding_window=32_768,
        max_window_layers=28,
        tie_word_embeddings=False,
    ),
    "qwen2-moe": config(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        **shape(3584, 28, 28, 4, intermediate_size=18_944, vocab_size=151_936),
        num_experts=64,
        num_experts_per_tok=8,
        moe_intermediate_size=2560,
        shared_expert_intermediate_size=20_480,
        decoder_sparse_step=1,
        use_sliding_window=False,
        tie_word_embeddings=False,
    ),
    "qwen3-8b": config(
        "Qwen3ForCausalLM",
        "qwen3",
        **shape(4096, 36, 32, 8, intermediate_size=12_288, head_dim=128, vocab_size=151_936),
        tie_word_embeddings=False,
    ),
    "qwen3-30b-a3b": config(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        **shape(2048, 48, 32, 4, intermediate_size=6144, head_dim=128, vocab_size=151_936),
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        mlp_only_layers=[],
        decoder_sparse_step=1,
        tie_word_embeddings=False,
    ),
    "phi3-mini": config(
        "Phi3ForCausalLM",
        "phi3",
        **shape(3072, 32, 32, 32, intermediate_size=8192, vocab_size=32_064),
        original_max_position_embeddings=32_768,
        sliding_window=2047,
        pad_token_id=32_000,
    ),
    "granite": config(
        "GraniteForCausalLM",
        "granite",
        **shape(4096, 40, 32, 8, intermediate_size=12_800, vocab_size=49_216),
        tie_word_embeddings=True,
    ),
    "granite-moe": config(
        "GraniteMoeForCausalLM",
        "granitemoe",
        **shape(1536, 32, 24, 8, intermediate_size=512, vocab_size=49_216),
        num_local_experts=40,
        num_experts_per_tok=8,
        tie_word_embeddings=True,
    ),
    "olmo2": config(
        "Olmo2ForCausalLM",
        "olmo2",
        **shape(4096, 32, 32, 32, intermediate_size=11_008, vocab_size=100_352),
        tie_word_embeddings=False,
    ),
    "olmo3": config(
        "Olmo3ForCausalLM",
        "olmo3",
        **shape(4096, 32, 32, 32, intermediate_size=11_008, vocab_size=100_352),
        sliding_window=4096,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
        tie_word_embeddings=False,
    ),
    "gemma": config(
        "GemmaForCausalLM",
        "gemma",
        **shape(2048, 18, 8, 1, intermediate_size=16_384, head_dim=256, vocab_size=256_000),
        **_GEMMA,
    ),
    "gemma2-9b": config(
        "Gemma2ForCausalLM",
        "gemma2",
        **shape(3584, 42, 16, 8, intermediate_size=14_336, head_dim=256, vocab_size=256_000),
        **_GEMMA,
        sliding_window=4096,
    ),
    "gemma3-1b": GEMMA3,
    "gpt-oss-20b": GPT_OSS,
    "glm-4.5-air": config(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        **shape(4096, 46, 96, 8, intermediate_size=10_944, head_dim=128, vocab_size=151_552),
        n_routed_experts=128,
        n_shared_experts=1,
        num_experts_per_tok=8,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        use_qk_norm=False,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "starcoder": config(
        "GPTBigCodeForCausalLM",
        "gpt_bigcode",
        n_embd=6144,
        n_layer=40,
        n_head=48,
        n_inner=24_576,
        n_positions=8192,
        max_position_embeddings=8192,
        multi_query=True,
        vocab_size=49_152,
    ),
    "llama4-scout": config(
        "Llama4ForCausalLM",
        "llama4_text",
        **shape(5120, 48, 40, 8, intermediate_size=8192, head_dim=128, vocab_size=202_048),
        intermediate_size_mlp=16_384,
        interleave_moe_layer_step=1,
        num_local_experts=16,
        num_experts_per_tok=1,
        attention_chunk_size=8192,
        no_rope_layer_interval=4,
        tie_word_embeddings=False,
    ),
    "deepseek-v2-lite": config(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **shape(2048, 27, 16, 16, intermediate_size=10_944, vocab_size=102_400),
        **latent(q_lora_rank=None),
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        tie_word_embeddings=False,
    ),
    "deepseek-v3": DEEPSEEK_V3,
    "qwen3-next-80b-a3b": QWEN3_NEXT,
    "jamba-mini": config(
        "JambaForCausalLM",
        "jamba",
        **shape(4096, 32, 32, 8, intermediate_size=14_336, vocab_size=65_536),
        attn_layer_period=8,
        attn_layer_offset=4,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=16,
        num_experts_per_tok=2,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=256,
        tie_word_embeddings=False,
    ),
    "granite-4-h-small": config(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        **shape(4096, 40, 32, 8, intermediate_size=768, vocab_size=100_352),
        **mamba2(128, 64, 128),
        layer_types=["attention" if n in (5, 15, 25, 35) else "mamba" for n in range(40)],
        num_local_experts=72,
        num_experts_per_tok=10,
        shared_intermediate_size=1536,
        tie_word_embeddings=True,
    ),
    "falcon-h1-7b": config(
        "FalconH1ForCausalLM",
        "falcon_h1",
        **shape(3072, 44, 12, 2, intermediate_size=12_288, head_dim=128, vocab_size=130_048),
        **mamba2(24, 128, 256),
        mamba_d_ssm=3072,
        mamba_rms_norm=False,
        tie_word_embeddings=False,
    ),
}
"""What vLLM's CPU platform builds."""
