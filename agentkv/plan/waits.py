"""From which wait on a swap is worth its transfers, for each link.

Formulas: reload M/B; recompute 2·P·S/R and attention; break-even (transfers·M/B)·μ_HBM/(μ_HBM -
μ_tier) (`agentkv.cost_model.break_even_s`). vLLM stores KV while it is computed: then a pause costs
one transfer, not two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentkv.cost_model import Prices, break_even_s
from agentkv.geometry import recompute_linear_s
from agentkv.passport.passport import Passport
from agentkv.passport.roofline import prefill_flops
from agentkv.plan.links import Link
from agentkv.plan.node import Node
from agentkv.plan.quantities import Distribution


@dataclass(frozen=True, slots=True)
class Resume:
    """A paused session: its bytes and what computing it again takes on its replica.

    What all sessions share is in the pool anyway: bytes and work are of the rest.
    """

    context_tokens: float
    shared_tokens: int
    kv_bytes: float
    recompute_s: float
    recompute_linear_s: float


@dataclass(frozen=True, slots=True)
class BreakEven:
    """One link. `pauses`, `held`: shares of pauses, and of the time they hold memory, beyond it."""

    link: Link
    bytes_per_s: float
    reload_s: float
    round_trip_s: float
    break_even_s: float
    stored_break_even_s: float
    speedup: float
    pauses: float | None
    held: float | None


def price_resume(
    passport: Passport, node: Node, context_tokens: float, mfu: float, shared_tokens: int = 0
) -> Resume:
    """Seconds to compute a context on one replica that reaches `mfu` of its peak."""
    rate = node.replica_flops_per_s * mfu
    active = passport.weights.parameters.active
    own = max(1, round(context_tokens) - shared_tokens)
    return Resume(
        context_tokens=context_tokens,
        shared_tokens=shared_tokens,
        kv_bytes=passport.device_footprint.bytes_for(own) * node.tensor_parallel,
        recompute_s=prefill_flops(passport.layers, active, own, shared_tokens) / rate,
        recompute_linear_s=recompute_linear_s(active, own, rate),
    )


def break_evens(
    resume: Resume,
    node: Node,
    links: Sequence[Link],
    prices: Prices,
    waits: Distribution | None,
) -> list[BreakEven]:
    """For each link, slowest first."""
    found = [break_even(resume, link, node.replica_devices, prices, waits) for link in links]
    return sorted(found, key=lambda each: each.bytes_per_s)


def break_even(
    resume: Resume, link: Link, num_devices: int, prices: Prices, waits: Distribution | None
) -> BreakEven:
    """One link, with as many devices as a replica has."""
    rate = link.of(num_devices)
    reload_s = resume.kv_bytes / rate
    both = break_even_s(resume.kv_bytes, rate, prices)
    one = break_even_s(resume.kv_bytes, rate, prices, transfers=1)
    return BreakEven(
        link=link,
        bytes_per_s=rate,
        reload_s=reload_s,
        round_trip_s=2 * reload_s,
        break_even_s=both,
        stored_break_even_s=one,
        speedup=resume.recompute_s / reload_s,
        pauses=None if waits is None else waits.share_above(one),
        held=None if waits is None else waits.sum_share_above(one),
    )
