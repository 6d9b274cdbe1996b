"""All runs of a sweep: policies x oversubscription x DRAM x seeds, in one process or several.

Every policy of one cell and seed plays the same workload. Runs are independent, so their order and
the number of processes change nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from agentkv.errors import ConfigError
from agentkv.sim.contenders import check_names
from agentkv.sim.profiles import Profile
from agentkv.sim.run import RunResult, RunSpec, TierSpec, run_once
from agentkv.sim.trace import TraceSession, fill_waits, guess_shared
from agentkv.sim.workload import (
    Options,
    PlannedSession,
    Totals,
    measure,
    plan_node,
    plan_sessions,
)

_POOL_SHARE = 0.5  # a session needs room beside others


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep. `cap_wait_s`: longer waits are cut; `max_context`: longer sessions are left out."""

    profile: Profile
    policies: tuple[str, ...]
    oversubscription: tuple[float, ...]
    dram: tuple[float, ...]
    num_seeds: int = 20
    duration_s: float = 7200.0
    warmup_s: float = 1800.0
    cap_wait_s: float | None = None
    max_context: int = 200_000
    options: Options = field(default_factory=Options)
    tiers: tuple[TierSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sessions ready to be played, their means, and what was left out."""

    sessions: Sequence[PlannedSession]
    totals: Totals
    num_left_out: int


def prepare(trace: Sequence[TraceSession], plan: Plan) -> Prepared:
    """Cuts, fills and measures the trace. Raises ConfigError where nothing can be played."""
    check_names(list(plan.policies))
    if not trace:
        raise ConfigError("the traces have no sessions; give a trace with at least one")
    most = min(plan.max_context, _POOL_SHARE * plan.profile.pool_tokens)
    sessions = guess_shared(fill_waits(list(trace), cap_s=plan.cap_wait_s))
    planned = plan_sessions(sessions, plan.options.block_tokens, most_tokens=most)
    kept = [session for session in sessions if session.longest_tokens <= most]
    return Prepared(planned, measure(kept, plan.profile), len(sessions) - len(kept))


def specs(plan: Plan, totals: Totals) -> Iterator[RunSpec]:
    """Every run, those of one workload next to each other."""
    cells = itertools.product(plan.oversubscription, plan.dram)
    for (ratio, dram), seed in itertools.product(cells, range(plan.num_seeds)):
        node = plan_node(
            totals, plan.profile, plan.options, oversubscription=ratio, dram_ratio=dram
        )
        for policy in plan.policies:
            yield RunSpec(
                policy=policy,
                oversubscription=ratio,
                dram=dram,
                seed=seed,
                node=node,
                options=plan.options,
                duration_s=plan.duration_s,
                warmup_s=plan.warmup_s,
                tiers=plan.tiers,
            )


def simulate(
    prepared: Prepared,
    plan: Plan,
    *,
    num_jobs: int = 1,
    on_done: Callable[[RunSpec], None] = lambda spec: None,
) -> list[RunResult]:
    """The results in the order of `specs`; `on_done` is called after each run."""
    todo = list(specs(plan, prepared.totals))
    results: list[RunResult] = []
    for spec, result in zip(todo, _results(todo, prepared.sessions, num_jobs), strict=True):
        on_done(spec)
        results.append(result)
    return results


def _results(
    todo: Sequence[RunSpec], sessions: Sequence[PlannedSession], num_jobs: int
) -> Iterable[RunResult]:
    if num_jobs <= 1:
        yield from (run_once(spec, sessions) for spec in todo)
        return
    with ProcessPoolExecutor(num_jobs) as pool:
        yield from pool.map(partial(run_once, sessions=sessions), todo)
