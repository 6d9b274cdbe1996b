"""Which architectures are known: `model_type` to what reads its config.

A model is taken only if its `model_type` stands here and `architectures` names the language model
that goes with it. Anything else is refused: a new attention under an old name would be wrong by
any factor. A new architecture is one line here and a case in the tests, which ask vLLM.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agentkv.errors import ConfigError
from agentkv.passport import decoders, experts, hybrids, latent, others
from agentkv.passport.blueprint import Blueprint
from agentkv.passport.decoders import Traits, build_decoder
from agentkv.passport.fields import Config

Build = Callable[[Config], Blueprint]


@dataclass(frozen=True, slots=True)
class Family:
    """`architectures`: the classes that are this model; wrappers with a tower are `wrappers`.

    `wrapped_defaults`: what published checkpoints of the wrapper leave to the architecture.
    """

    build: Build
    architectures: tuple[str, ...]
    wrappers: tuple[str, ...] = ()
    wrapped_defaults: Mapping[str, int] = field(default_factory=dict)


def _decoder(traits: Traits, *architectures: str, wrappers: tuple[str, ...] = ()) -> Family:
    return Family(lambda config: build_decoder(config, traits), architectures, wrappers)


# transformers' Gemma3TextConfig; the config.json of gemma-3-4b leaves all of it out.
_GEMMA3: Final = {
    **{"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"head_dim": 256, "sliding_window_pattern": 6, "max_position_embeddings": 131_072},
}
_DEEPSEEK_V3 = ("DeepseekV3ForCausalLM",)

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": _decoder(
        Traits(mlp_bias_flag="mlp_bias", windows=decoders.all_windowed), "LlamaForCausalLM"
    ),
    "mistral": _decoder(
        Traits(windows=decoders.all_windowed),
        "MistralForCausalLM",
        wrappers=("Mistral3ForConditionalGeneration",),
    ),
    "mixtral": _decoder(
        Traits(windows=decoders.all_windowed, experts=experts.mixtral_experts),
        "MixtralForCausalLM",
    ),
    "qwen2": _decoder(
        Traits(qkv_bias=True, bias_flag=None, windows=decoders.windowed_above), "Qwen2ForCausalLM"
    ),
    "qwen2_moe": _decoder(
        Traits(
            qkv_bias=True,
            bias_flag=None,
            windows=decoders.windowed_above,
            experts=experts.qwen2_experts,
        ),
        "Qwen2MoeForCausalLM",
    ),
    "qwen3": _decoder(Traits(qk_norm="head", windows=decoders.windowed_above), "Qwen3ForCausalLM"),
    "qwen3_moe": _decoder(
        Traits(qk_norm="head", windows=decoders.windowed_above, experts=experts.qwen_experts),
        "Qwen3MoeForCausalLM",
    ),
    "phi3": _decoder(Traits(windows=decoders.all_windowed), "Phi3ForCausalLM"),
    "granite": _decoder(
        Traits(mlp_bias_flag="mlp_bias", windows=decoders.all_windowed), "GraniteForCausalLM"
    ),
    "granitemoe": _decoder(Traits(experts=experts.mixtral_experts), "GraniteMoeForCausalLM"),
    "olmo2": _decoder(Traits(qk_norm="all"), "Olmo2ForCausalLM"),
    "olmo3": _decoder(
        Traits(qk_norm="all", windows=decoders.windowed_as_named), "Olmo3ForCausalLM"
    ),
    "gemma": _decoder(Traits(tied=True), "GemmaForCausalLM"),
    "gemma2": _decoder(
        Traits(tied=True, num_norms=4, windows=decoders.windowed_by_turns), "Gemma2ForCausalLM"
    ),
    "gemma3_text": replace(
        _decoder(
            Traits(tied=True, num_norms=4, qk_norm="head", windows=decoders.windowed_but_some),
            "Gemma3ForCausalLM",
            wrappers=("Gemma3ForConditionalGeneration",),
        ),
        wrapped_defaults=_GEMMA3,
    ),
    "gpt_oss": _decoder(
        Traits(
            qkv_bias=True,
            output_bias=True,
            bias_flag=None,
            has_sinks=True,
            windows=decoders.windowed_by_turns,
            experts=experts.gpt_oss_experts,
        ),
        "GptOssForCausalLM",
    ),
    "glm4_moe": Family(others.build_glm4_moe, ("Glm4MoeForCausalLM",)),
    "gpt_bigcode": Family(others.build_gpt_bigcode, ("GPTBigCodeForCausalLM",)),
    "llama4_text": Family(
        others.build_llama4, ("Llama4ForCausalLM",), ("Llama4ForConditionalGeneration",)
    ),
    "deepseek_v2": Family(latent.build_latent, ("DeepseekV2ForCausalLM",)),
    "deepseek_v3": Family(latent.build_latent, _DEEPSEEK_V3),
    "kimi_k2": Family(latent.build_latent, _DEEPSEEK_V3),
    "deepseek_v32": Family(latent.build_sparse_latent, ("DeepseekV32ForCausalLM",)),
    "qwen3_next": Family(hybrids.build_qwen3_next, ("Qwen3NextForCausalLM",)),
    "jamba": Family(hybrids.build_jamba, ("JambaForCausalLM",)),
    "bamba": Family(hybrids.build_bamba, ("BambaForCausalLM",)),
    "granitemoehybrid": Family(hybrids.build_granite_hybrid, ("GraniteMoeHybridForCausalLM",)),
    "falcon_h1": Family(hybrids.build_falcon_h1, ("FalconH1ForCausalLM",)),
    "kimi_linear": Family(hybrids.build_kimi_linear, ("KimiLinearForCausalLM",)),
}

_TOWER_NOTE = "the language model alone: vision and audio towers are not counted"


def read_blueprint(data: Mapping[str, Any], label: str) -> tuple[Config, Blueprint]:
    """The language model's own config and what it is. Raises ConfigError for what is not known."""
    config = Config(data, label)
    inner = data.get("text_config")
    is_wrapped = config.model_type not in FAMILIES and isinstance(inner, Mapping)
    if is_wrapped:
        outer = {name: data[name] for name in ("dtype", "torch_dtype") if data.get(name)}
        config = Config({**outer, **dict(inner or {})}, label)
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise _unknown_type(config)
    if is_wrapped:
        config.assume(family.wrapped_defaults)
    names = family.wrappers if is_wrapped else family.architectures
    _check_architecture(config, data.get("architectures"), names)
    blueprint = family.build(config)
    if is_wrapped:
        blueprint = replace(blueprint, notes=(*blueprint.notes, _TOWER_NOTE))
    return config, blueprint


def _unknown_type(config: Config) -> ConfigError:
    known = ", ".join(sorted(FAMILIES))
    if not config.model_type:
        return config.refuse(f"config.json lacks `model_type`; add it, one of {known}")
    near = difflib.get_close_matches(config.model_type, FAMILIES, n=1)
    hint = f" (nearest: {near[0]})" if near else ""
    return config.refuse(
        f"model_type {config.model_type!r} is not known{hint}, and what its layers keep is not"
        f" guessed; known are {known}"
    )


def _check_architecture(config: Config, given: Any, known: tuple[str, ...]) -> None:
    if not isinstance(given, list) or not given:
        raise config.refuse(f"config.json lacks `architectures`; add it, as [{known[0]!r}]")
    if not set(map(str, given)) & set(known):
        wanted = " or ".join(known) or f"{config.model_type} without a tower around it"
        raise config.refuse(
            f"architectures {given} is not known for model_type {config.model_type!r}, and what"
            f" its layers keep is not guessed; known is {wanted}"
        )
