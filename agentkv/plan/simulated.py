"""The planned node, simulated on recorded sessions: what the tail of a resumed turn waits.

What: a `sim` profile made of the passport and the node, played with so many agents and the given
tiers. Why: closed formulas know averages; queues and evictions make the tail.
Assumed, beside what `agentkv.sim` models: prefill reaches `mfu` of the peak, decode reads at 75 %
of the bandwidth, and bytes per token are those of the mean context (windows and states included).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agentkv.passport.passport import Passport
from agentkv.plan.links import LINKS
from agentkv.plan.node import Node
from agentkv.plan.tiers import Tier
from agentkv.sim.profiles import READ_SHARE, Profile
from agentkv.sim.readers import read_traces
from agentkv.sim.run import RunResult, RunSpec, TierSpec
from agentkv.sim.sweep import Plan, Prepared, prepare
from agentkv.sim.sweep import simulate as run_all
from agentkv.sim.workload import Options

_SLOW_LATENCY_S = 0.001
_SHORTEST = 16


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """`sessions`: agents at a time on the whole node, each number a run."""

    trace: Path
    sessions: tuple[int, ...]
    policies: tuple[str, ...]
    hours: float
    num_seeds: int
    mfu: float
    load: str = "recorded"


def make_profile(passport: Passport, node: Node, mean_tokens: float, mfu: float) -> Profile:
    """One replica as the simulator wants it.

    x0, where attention costs as much as the rest, is 2·P over the FLOP of one attended position.
    """
    tokens = max(_SHORTEST, round(mean_tokens))
    active = passport.weights.parameters.active
    pairs = sum(layer.pair_flops for layer in passport.layers if layer.window_tokens is None)
    split = node.tensor_parallel
    per_token = passport.device_footprint.bytes_for(tokens) * split / tokens
    bandwidth = READ_SHARE * node.replica_bytes_per_s
    host = LINKS[node.accelerator.link].of(node.replica_devices)
    return Profile(
        name=f"{node.replica_devices} x {node.accelerator.name}",
        pool_tokens=int(node.device_pool_bytes * node.replica_devices / per_token),
        bytes_per_token=per_token,
        prefill_tokens_per_s=mfu * node.replica_flops_per_s / (2 * active),
        prefill_x0_tokens=2 * active / pairs if pairs else 1e12,
        decode_step_s=passport.weights.read_bytes() / bandwidth,
        kv_read_bytes_per_s=bandwidth,
        load_bytes_per_s=host,
        store_bytes_per_s=host,
    )


def prepare_simulation(
    passport: Passport,
    node: Node,
    tiers: Sequence[Tier],
    request: SimulationRequest,
    mean_tokens: float,
) -> tuple[Prepared, Plan]:
    """The trace and one plan; agents are dealt evenly to the replicas, of which one is played.

    Raises ConfigError for a trace that cannot be played.
    """
    profile = make_profile(passport, node, mean_tokens, request.mfu)
    pool_bytes = profile.pool_tokens * profile.bytes_per_token * node.num_replicas
    dram = sum(tier.size_bytes for tier in tiers if tier.name == "dram")
    plan = Plan(
        profile=profile,
        policies=request.policies,
        oversubscription=(1.0,),
        dram=(dram / pool_bytes,),
        num_seeds=request.num_seeds,
        duration_s=request.hours * 3600,
        warmup_s=request.hours * 3600 / 4,
        options=Options(load=request.load),
        tiers=tuple(
            TierSpec(
                tier.name,
                tier.size_bytes / pool_bytes,
                tier.link.of(node.num_devices) / node.num_replicas,
                _SLOW_LATENCY_S,
            )
            for tier in tiers
            if tier.name != "dram" and tier.size_bytes
        ),
    )
    prepared = prepare(read_traces([request.trace]), plan)
    return prepared, _with_sessions(plan, prepared, request, node.num_replicas)


def _with_sessions(
    plan: Plan, prepared: Prepared, request: SimulationRequest, num_replicas: int
) -> Plan:
    """The simulator counts live KV in pools; so many agents are this much of it."""
    per_agent = prepared.totals.private_tokens / plan.profile.pool_tokens
    agents = [max(1, round(count / num_replicas)) for count in request.sessions]
    return replace(plan, oversubscription=tuple(count * per_agent for count in agents))


def count_runs(plan: Plan) -> int:
    """How many runs the plan has."""
    return len(plan.policies) * len(plan.oversubscription) * plan.num_seeds


def run_simulation(
    prepared: Prepared, plan: Plan, num_jobs: int, on_done: Callable[[RunSpec], None]
) -> list[RunResult]:
    """All runs in the order of the plan's sessions, policies within seeds."""
    return run_all(prepared, plan, num_jobs=num_jobs, on_done=on_done)


@dataclass(frozen=True, slots=True)
class Tail:
    """What resumed turns met with so many agents under one policy; all seeds together.

    `sessions`: on the whole node; `ttft`: p50, p95 and p99 of the first token of a resumed turn,
    with its queue, load and prefill; `stall_p95_s`: what of it an idle engine with everything
    cached would not take.
    """

    sessions: int
    policy: str
    num_resumes: int
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    stall_p95_s: float
    recomputed_share: float
    turns_per_hour: float
    busy_share: float


def tails(results: Sequence[RunResult], num_replicas: int) -> list[Tail]:
    """One for each number of agents and policy, in the order of the runs."""
    grouped: dict[tuple[int, str], list[RunResult]] = {}
    for result in results:
        key = (result.row["slots"] * num_replicas, result.row["policy"])
        grouped.setdefault(key, []).append(result)
    return [_tail(key, runs, num_replicas) for key, runs in grouped.items()]


def _tail(key: tuple[int, str], runs: Sequence[RunResult], num_replicas: int) -> Tail:
    times: list[Sequence[float]] = [resume for run in runs for resume in run.resumes]
    resumes = np.array(times or [[math.nan] * 4])
    p50, p95, p99 = (float(x) for x in np.quantile(resumes[:, 2], (0.5, 0.95, 0.99)))
    reusable = sum(run.row["reusable_tokens"] for run in runs)
    return Tail(
        sessions=key[0],
        policy=key[1],
        num_resumes=sum(len(run.resumes) for run in runs),
        ttft_p50_s=p50,
        ttft_p95_s=p95,
        ttft_p99_s=p99,
        stall_p95_s=float(np.quantile(resumes[:, 3], 0.95)),
        recomputed_share=sum(run.row["recomputed_tokens"] for run in runs) / max(1, reusable),
        turns_per_hour=num_replicas * float(np.mean([run.row["turns_per_hour"] for run in runs])),
        busy_share=float(np.mean([run.row["busy_share"] for run in runs])),
    )
