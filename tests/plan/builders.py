"""The documents' 70B and 8B, and their nodes."""

from __future__ import annotations

from typing import Any

from passport.configs import LLAMA_8B, LLAMA_70B

from agentkv.passport.accelerators import ACCELERATORS
from agentkv.passport.passport import Passport, Serving, make_passport
from agentkv.plan.capacity import Demand
from agentkv.plan.node import Node
from agentkv.plan.planning import Answer, Question, make_plan
from agentkv.plan.quantities import Distribution, constant

GB = 10**9
GIB = 2**30
LONG = {"max_position_embeddings": 2_000_000}


def passport_70b(tensor_parallel: int = 8) -> Passport:
    data = {**LLAMA_70B, **LONG}
    return make_passport(data, "70b", Serving(tensor_parallel=tensor_parallel))


def passport_8b() -> Passport:
    return make_passport({**LLAMA_8B, **LONG}, "8b", Serving())


def node(**changes: Any) -> Node:
    """Eight devices as one replica; the documents' first node has 687.2 GB in all."""
    fields: dict[str, Any] = {
        "accelerator": ACCELERATORS["h100"],
        "num_devices": 8,
        "tensor_parallel": 8,
        "pipeline_parallel": 1,
        "hbm_bytes": 687.2 * GB / 8,
        "runtime_bytes": 20 * GB / 8,
        "weights_bytes": 141.2 * GB,
    }
    return Node(**(fields | changes))


def demand(context: float | Distribution, **changes: Any) -> Demand:
    """No answer, nothing shared, no headroom, unless said."""
    spread = context if isinstance(context, Distribution) else constant(context)
    return Demand(spread, **({"headroom": 0.0} | changes))


def plan(context: float | Distribution, **changes: Any) -> Answer:
    question: dict[str, Any] = {"passport": passport_70b(), "node": node()}
    demanded = {
        name: changes.pop(name)
        for name in ("output_tokens", "shared_tokens", "forks", "headroom")
        if name in changes
    }
    return make_plan(Question(**(question | changes), demand=demand(context, **demanded)))
