"""How many sessions a pool holds.

Formula (documents' "Analytical formulations of capacity"): the demand of B sessions is
S_shared + B·((1 - share)·M + K) tokens, and the pool keeps a headroom; so
B = floor((pool·(1 - headroom) - shared) / private). Windows and states count with what they keep
(`KvFootprint`). A session of F branches keeps its context once and F answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentkv.errors import ConfigError
from agentkv.geometry import KvFootprint, expected_waste_ratio
from agentkv.plan.node import Node
from agentkv.plan.quantities import Distribution, constant

_Z95 = 1.645  # one-sided 95 % of a normal distribution


@dataclass(frozen=True, slots=True)
class Demand:
    """What a session wants. `context`: tokens of prompt; `shared_tokens` of them are all's."""

    context: Distribution
    output_tokens: int = 0
    shared_tokens: int = 0
    forks: int = 1
    headroom: float = 0.1


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of the whole node; bytes of a session on all devices of its replica together.

    `sessions`: by the mean; `sure_sessions`: so many fit with 95 % probability, for contexts that
    are independent (central limit).
    """

    sessions: int
    sure_sessions: int
    private_bytes: float
    shared_bytes: float
    usable_bytes: float
    token_capacity: int
    tail_waste: float


def check_demand(demand: Demand, max_context_tokens: int | None) -> Demand:
    """The demand itself. Raises ConfigError for what contradicts itself or the model."""
    if demand.shared_tokens > demand.context.values.min():
        least = int(demand.context.values.min())
        raise ConfigError(
            f"--shared {demand.shared_tokens}: more than the shortest context; give at most {least}"
        )
    if demand.shared_tokens == demand.context.most and not demand.output_tokens:
        raise ConfigError(
            f"--shared {demand.shared_tokens}: leaves a session nothing of its own; give less"
        )
    longest = demand.context.most + demand.output_tokens
    if max_context_tokens is not None and longest > max_context_tokens:
        most = max(1, max_context_tokens - demand.output_tokens)
        raise ConfigError(
            f"--context {demand.context.most:.0f}: with --output {demand.output_tokens} longer than"
            f" the model's {max_context_tokens} (max_position_embeddings); give at most {most}"
        )
    return demand


def private_bytes(kept: KvFootprint, demand: Demand, context_tokens: float) -> float:
    """Bytes of one session beside what it shares."""
    own = round(context_tokens) - demand.shared_tokens
    if demand.forks == 1:
        return kept.bytes_for(own + demand.output_tokens)
    return kept.bytes_for(own) + demand.forks * kept.bytes_for(demand.output_tokens)


def count_sessions(node: Node, device_kept: KvFootprint, demand: Demand, block: int) -> Capacity:
    """Sessions of all replicas. `device_kept`: what a context takes on one of TP devices.

    Pipeline stages divide the layers, and so all of it, evenly.
    """
    split = node.tensor_parallel
    usable = node.device_pool_bytes * node.pipeline_parallel * split * (1 - demand.headroom)
    shared = device_kept.bytes_for(demand.shared_tokens) * split
    sizes = demand.context.map(lambda tokens: private_bytes(device_kept, demand, tokens) * split)
    room = usable - shared
    per_token = sum(group.bytes_per_token for group in device_kept.groups) * split
    mean_tokens = demand.context.mean + demand.output_tokens
    return Capacity(
        sessions=node.num_replicas * max(0, math.floor(room / sizes.mean)),
        sure_sessions=node.num_replicas * _sure(room, sizes.mean, sizes.deviation),
        private_bytes=sizes.mean,
        shared_bytes=shared,
        usable_bytes=usable * node.num_replicas,
        token_capacity=node.num_replicas * int(usable // per_token) if per_token else 0,
        tail_waste=expected_waste_ratio(mean_tokens, block),
    )


def _sure(room: float, mean: float, deviation: float) -> int:
    """The largest B with B·mean + z·deviation·√B ≤ room."""
    if room <= 0:
        return 0
    z = _Z95 * deviation
    root = (math.sqrt(z * z + 4 * mean * room) - z) / (2 * mean)
    return max(0, math.floor(root * root * (1 + 1e-12)))


def ladder(
    node: Node, device_kept: KvFootprint, demand: Demand, contexts: Sequence[int]
) -> list[tuple[int, int]]:
    """(context, sessions) for constant contexts that hold at least what is shared."""
    rows = []
    for context in contexts:
        if context <= demand.shared_tokens:
            continue
        found = count_sessions(node, device_kept, replace(demand, context=constant(context)), 16)
        rows.append((context, found.sessions))
    return rows
