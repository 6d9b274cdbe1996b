"""The feed-forward part of mixtures of experts: routers, routed and shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentkv.passport.fields import Config
from agentkv.passport.parameters import Parameters, gated_mlp


@dataclass(frozen=True, slots=True)
class Experts:
    """All layers with experts together; counts of parameters as in `Parameters`."""

    num_layers: int = 0
    num_experts: int = 1
    per_token: int = 1
    matrices: int = 0
    experts: int = 0
    vectors: int = 0

    def added_to(self, parameters: Parameters) -> Parameters:
        """The parameters with those of the experts."""
        added = parameters.plus(matrices=self.matrices, experts=self.experts, vectors=self.vectors)
        return replace(added, num_experts=self.num_experts, experts_per_token=self.per_token)


def no_experts(config: Config) -> Experts:
    """A dense model."""
    return Experts()


@dataclass(frozen=True, slots=True)
class Names:
    """How a model type names its fields. `vectors`: more numbers per expert and hidden size."""

    count: str
    per_token: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared: str | None = None


def _check_counts(config: Config, names: Names) -> tuple[int, int]:
    count, per_token = config.integer(names.count), config.integer(names.per_token)
    if per_token > count:
        raise config.refuse(
            f"`{names.per_token}` is {per_token}, more than the {count} experts of `{names.count}`"
        )
    return count, per_token


def in_layers(config: Config, names: Names, num_layers: int) -> Experts:
    """Router, routed experts and shared ones in `num_layers` layers."""
    count, per_token = _check_counts(config, names)
    hidden, width = config.integer("hidden_size"), config.integer(names.width)
    shared = config.integer(names.shared, least=0) if names.shared else 0
    return Experts(
        num_layers=num_layers,
        num_experts=count,
        per_token=per_token,
        matrices=num_layers * (count * hidden + gated_mlp(hidden, shared)),
        experts=num_layers * count * gated_mlp(hidden, width),
    )


def mixtral_experts(config: Config) -> Experts:
    """Mixtral and Granite: every layer."""
    names = Names("num_local_experts", width="intermediate_size")
    return in_layers(config, names, config.integer("num_hidden_layers"))


def qwen_experts(config: Config) -> Experts:
    """Qwen 3: the layers that `decoder_sparse_step` and `mlp_only_layers` leave."""
    return in_layers(config, Names("num_experts"), sparse_layers(config))


def qwen2_experts(config: Config) -> Experts:
    """Qwen 2 and Qwen 3 Next: with a shared expert, which a gate weighs."""
    names = Names("num_experts", shared="shared_expert_intermediate_size")
    found = in_layers(config, names, sparse_layers(config))
    gates = found.num_layers * config.integer("hidden_size")
    return replace(found, matrices=found.matrices + gates)


def sparse_layers(config: Config) -> int:
    """The number of layers with experts of Qwen's models."""
    step = config.integer_or("decoder_sparse_step", 1, least=1)
    dense = config.sequence("mlp_only_layers") if config.has("mlp_only_layers") else []
    num_layers = config.integer("num_hidden_layers")
    return sum(i not in dense and (i + 1) % step == 0 for i in range(num_layers))


def gpt_oss_experts(config: Config) -> Experts:
    """gpt-oss: every layer, with biases of router and experts."""
    num_layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    names = Names("num_local_experts", width="intermediate_size")
    found = in_layers(config, names, num_layers)
    width = config.integer("intermediate_size")
    biases = found.num_experts * (1 + 2 * width + hidden)
    return replace(found, vectors=num_layers * biases)


def deepseek_experts(config: Config) -> Experts:
    """DeepSeek V2 and V3, GLM 4.5: dense first layers, then routed and shared experts.

    `topk_method` noaux_tc adds a correction per expert, which chooses them.
    """
    num_layers = config.integer("num_hidden_layers")
    first = config.integer("first_k_dense_replace", least=0)
    step = config.integer_or("moe_layer_freq", 1, least=1)
    num_sparse = sum(i >= first and i % step == 0 for i in range(num_layers))
    found = in_layers(config, Names("n_routed_experts"), num_sparse)
    width = config.integer("moe_intermediate_size")
    shared = config.integer_or("n_shared_experts", 0) * width
    has_correction = config.data.get("topk_method") == "noaux_tc" or config.model_type == "glm4_moe"
    return replace(
        found,
        matrices=found.matrices + num_sparse * gated_mlp(config.integer("hidden_size"), shared),
        vectors=num_sparse * found.num_experts if has_correction else 0,
    )
