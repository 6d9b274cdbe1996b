"""One run: a policy on a node with a workload and a seed, and the row that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentkv import metrics
from agentkv.clock import ManualClock
from agentkv.sim.agents import Agents
from agentkv.sim.contenders import make_keeper
from agentkv.sim.dram import Dram, SlowTier
from agentkv.sim.engine import Engine
from agentkv.sim.machine import Link, Machine
from agentkv.sim.managed import ManagedKeeper
from agentkv.sim.pool import Pool
from agentkv.sim.tally import Tally
from agentkv.sim.workload import Node, Options, PlannedSession, make_slots

_LONG_AGO_S = -1e9


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A tier below DRAM: size in units of the GPU pool."""

    name: str
    pool_ratio: float
    load_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that one run depends on, but the sessions. Counted from `warmup_s` on."""

    policy: str
    oversubscription: float
    dram: float
    seed: int
    node: Node
    options: Options
    duration_s: float = 7200.0
    warmup_s: float = 1800.0
    tiers: tuple[TierSpec, ...] = ()


@dataclass(slots=True)
class RunResult:
    """`row`: the numbers; `resumes`: (context tokens, wait before, TTFT, stall) of each turn."""

    row: dict[str, Any]
    resumes: list[tuple[int, float, float, float]] = field(default_factory=list)


def run_once(spec: RunSpec, sessions: Sequence[PlannedSession]) -> RunResult:
    """Simulates `duration_s` seconds after a warm start. The same spec gives the same result."""
    machine = _machine(spec)
    tally = Tally(machine, from_s=spec.warmup_s)
    keeper = make_keeper(spec.policy, machine, tally, spec.options, stretch=spec.node.stretch)
    agents = Agents(machine, keeper, spec.options)
    engine = agents.engine = Engine(machine, keeper, tally, agents.finished)
    agents.seed(make_slots(sessions, spec.options, spec.node, seed=spec.seed))
    engine.run(spec.duration_s)
    machine.pool.check()
    row = _row(spec, tally, machine)
    row["unfinished"] = engine.num_unfinished
    if isinstance(keeper, ManagedKeeper):
        row |= _prefetches(keeper) | _held_back(keeper)
    return RunResult(row, tally.resumes)


def _machine(spec: RunSpec) -> Machine:
    node, profile = spec.node, spec.node.profile
    tiers = [
        SlowTier(t.name, int(t.pool_ratio * node.pool_blocks), t.load_bytes_per_s, t.latency_s)
        for t in spec.tiers
    ]
    return Machine(
        profile=profile,
        block_tokens=spec.options.block_tokens,
        pool=Pool(node.pool_blocks),
        dram=Dram(node.dram_blocks, tiers),
        load_link=Link(profile.load_bytes_per_s, profile.load_latency_s),
        clock=ManualClock(_LONG_AGO_S),
    )


def _row(spec: RunSpec, tally: Tally, machine: Machine) -> dict[str, Any]:
    hours = max(1e-9, machine.now_s - spec.warmup_s) / 3600
    ttft = np.array([resume[2] for resume in tally.resumes] or [np.nan])
    stall = np.array([resume[3] for resume in tally.resumes] or [np.nan])
    turns_per_hour = tally.turns / hours
    return {
        "policy": spec.policy,
        "oversubscription": spec.oversubscription,
        "dram": spec.dram,
        "x": spec.node.pressure_x,
        "seed": spec.seed,
        "slots": spec.node.num_slots,
        "stretch": spec.node.stretch,
        "turns": tally.turns,
        "recomputed_tokens": tally.recomputed_tokens,
        "reusable_tokens": tally.reusable_tokens,
        "recomputed_share": tally.recomputed_tokens / max(1, tally.reusable_tokens),
        "gpu_hit_tokens": tally.gpu_hit_tokens,
        "dram_hit_tokens": tally.dram_hit_tokens,
        "mean_resume_ttft_s": float(ttft.mean()),
        "p50_resume_ttft_s": float(np.quantile(ttft, 0.5)),
        "p95_resume_ttft_s": float(np.quantile(ttft, 0.95)),
        "mean_resume_stall_s": float(stall.mean()),
        "p95_resume_stall_s": float(np.quantile(stall, 0.95)),
        "turns_per_hour": turns_per_hour,
        "sessions_per_hour": turns_per_hour / spec.node.mean_turns,
        "mean_queue_s": tally.queue_s / max(1, tally.turns),
        "busy_share": tally.step_s / 3600 / hours,
        "recompute_step_share": tally.recompute_s / max(1e-9, tally.step_s),
        "prefill_step_share": tally.prefill_s / max(1e-9, tally.step_s),
        "decoded_tokens": tally.decoded_tokens,
        "gpu_paused_token_s": tally.gpu_paused_token_s,
        "reload_s": tally.reload_s,
        "hidden_reload_s": tally.hidden_reload_s,
        "dram_stored_blocks": machine.dram.num_stored,
    }


def _prefetches(keeper: ManagedKeeper) -> dict[str, Any]:
    """Outcomes and triggers of the whole run, and what was copied out."""
    counters = keeper.recorder.counters
    row: dict[str, Any] = {"copied_out_blocks": keeper.exclusive.num_copied}
    for (metric, labels), value in counters.items():
        if metric is metrics.PREFETCH_OUTCOMES:
            row[f"prefetch_{labels[0]}"] = value
        elif metric is metrics.PREFETCHES:
            row[f"prefetch_by_{labels[0]}"] = value
        elif metric is metrics.DECISIONS:
            row[f"decisions_{labels[0]}"] = value
    return row


def _held_back(keeper: ManagedKeeper) -> dict[str, Any]:
    """Turns of the whole run that admission held back, and for how long at most."""
    waits_s = keeper.recorder.samples.get((metrics.ADMISSION_WAIT, ()), [])
    delayed = keeper.recorder.counters.get((metrics.ADMISSION_DELAYED, ()), 0)
    return {
        "admission_delayed": int(delayed),
        "admission_wait_s": float(sum(waits_s)),
        "admission_max_wait_s": max(waits_s, default=0.0),
    }
