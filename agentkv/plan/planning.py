"""The whole plan: what was asked, and every answer of the closed formulas.

Where: `cli.plan` fills `Question` from its options and shows the `Answer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from agentkv.config import PricesConfig
from agentkv.cost_model import Prices
from agentkv.errors import ConfigError
from agentkv.passport.accelerators import ACCELERATORS
from agentkv.passport.passport import Passport
from agentkv.plan.capacity import Capacity, Demand, check_demand, count_sessions, ladder
from agentkv.plan.links import LINKS, Link
from agentkv.plan.node import Node, check_node
from agentkv.plan.quantities import Distribution
from agentkv.plan.tiers import Tier, TierValue, usual_tiers, value_of
from agentkv.plan.waits import BreakEven, Resume, break_evens, price_resume

ENVELOPE: Final = ("h100", "h200", "b200", "gb200")
ENVELOPE_CONTEXTS: Final = (4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 1_000_000)


@dataclass(frozen=True, slots=True)
class Question:
    """`waits`: None if nothing is known of them; `dram_price`: over contended GPU memory."""

    passport: Passport
    node: Node
    demand: Demand
    waits: Distribution | None = None
    tiers: tuple[Tier, ...] = ()
    links: tuple[Link, ...] = ()
    mfu: float = 0.35
    dram_price: float = PricesConfig().dram_over_hbm
    gpu_price: float | None = None


@dataclass(frozen=True, slots=True)
class EnvelopeRow:
    """The same devices of another kind; sessions by context, none where weights do not fit."""

    accelerator: str
    pool_bytes: float
    sessions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """`tier_sessions`: those that pause in the tiers beside the ones in the pool."""

    question: Question
    capacity: Capacity
    by_context: tuple[tuple[int, int], ...]
    resume: Resume
    links: tuple[BreakEven, ...]
    tiers: tuple[TierValue, ...]
    tier_sessions: int
    envelope: tuple[EnvelopeRow, ...]


def make_plan(question: Question) -> Answer:
    """Answers with the closed formulas. Raises ConfigError for what contradicts itself."""
    passport, node = question.passport, check_node(question.node)
    demand = check_demand(question.demand, passport.max_context_tokens)
    kept = passport.device_footprint
    capacity = count_sessions(node, kept, demand, passport.block_tokens)
    resume = price_resume(passport, node, demand.context.mean, question.mfu, demand.shared_tokens)
    prices = Prices(hbm=1.0, dram=question.dram_price)
    links = (*LINKS.values(), *question.links)
    values = _tier_values(question, resume)
    return Answer(
        question=question,
        capacity=capacity,
        by_context=tuple(ladder(node, kept, demand, _contexts(passport))),
        resume=resume,
        links=tuple(break_evens(resume, node, links, prices, question.waits)),
        tiers=values,
        tier_sessions=_tier_sessions(question, resume, values),
        envelope=envelope(question, _contexts(passport)),
    )


def _contexts(passport: Passport) -> Sequence[int]:
    longest = passport.max_context_tokens
    return [n for n in ENVELOPE_CONTEXTS if longest is None or n <= longest]


def _tier_values(question: Question, resume: Resume) -> tuple[TierValue, ...]:
    if question.waits is None:
        return ()
    tiers = question.tiers or usual_tiers(question.node.accelerator.link)
    return tuple(
        value_of(tier, resume, question.node, question.waits, question.gpu_price) for tier in tiers
    )


def _tier_sessions(question: Question, resume: Resume, values: Sequence[TierValue]) -> int:
    """By what links carry, if waits are known, else by size alone."""
    if values:
        return sum(value.sessions for value in values)
    return sum(int(tier.size_bytes // resume.kv_bytes) for tier in question.tiers)


def envelope(question: Question, contexts: Sequence[int]) -> tuple[EnvelopeRow, ...]:
    """The question for other accelerators, each with its published memory."""
    rows = []
    for name in ENVELOPE:
        device = ACCELERATORS[name]
        node = replace(question.node, accelerator=device, hbm_bytes=device.hbm_bytes)
        kept = question.passport.device_footprint
        sessions: tuple[tuple[int, int], ...] = ()
        if node.device_pool_bytes > 0:
            sessions = tuple(ladder(node, kept, question.demand, contexts))
        rows.append(EnvelopeRow(name, max(0.0, node.pool_bytes), sessions))
    return tuple(rows)


def check_share(option: str, value: float) -> float:
    """A part of a whole, the whole left out. Raises ConfigError."""
    if not 0 <= value < 1:
        raise ConfigError(f"{option} {value:g}: give a number from 0 up and below 1")
    return value


def to_json(answer: Answer) -> dict[str, Any]:
    """All numbers as plain objects."""
    question = answer.question
    return {
        "model": question.passport.name,
        "bytes_per_token": question.passport.bytes_per_token,
        "fixed_bytes": question.passport.fixed_bytes,
        "node": _node_json(question.node),
        "demand": _demand_json(question.demand),
        "sessions": answer.capacity.sessions,
        "tier_sessions": answer.tier_sessions,
        "capacity": asdict(answer.capacity),
        "sessions_by_context": _by_context(answer.by_context),
        "resume": asdict(answer.resume),
        "break_even": [{**asdict(row), "link": row.link.name} for row in answer.links],
        "waits": None if question.waits is None else _waits_json(question.waits),
        "tiers": [_tier_json(row) for row in answer.tiers],
        "envelope": [
            {**asdict(row), "sessions": _by_context(row.sessions)} for row in answer.envelope
        ],
        "assumed": {
            "mfu": question.mfu,
            "dram_over_hbm": question.dram_price,
            "gpu_price": question.gpu_price,
        },
    }


def _node_json(node: Node) -> dict[str, Any]:
    return {
        **asdict(node),
        "num_replicas": node.num_replicas,
        "device_pool_bytes": node.device_pool_bytes,
        "pool_bytes": node.pool_bytes,
    }


def _demand_json(demand: Demand) -> dict[str, Any]:
    return {
        "context_mean": demand.context.mean,
        "context_p95": demand.context.quantile(0.95),
        "output_tokens": demand.output_tokens,
        "shared_tokens": demand.shared_tokens,
        "forks": demand.forks,
        "headroom": demand.headroom,
    }


def _by_context(sessions: Sequence[tuple[int, int]]) -> dict[str, int]:
    return {str(context): count for context, count in sessions}


def _tier_json(row: TierValue) -> dict[str, Any]:
    tier = row.tier
    named = {"tier": tier.name, "link": tier.link.name}
    return {**asdict(row), **named, "size_bytes": tier.size_bytes, "price": tier.price}


def _waits_json(waits: Distribution) -> dict[str, float]:
    quantiles = {f"p{round(100 * p)}": waits.quantile(p) for p in (0.5, 0.9, 0.99)}
    return {"mean": waits.mean, **quantiles, "max": waits.most}
