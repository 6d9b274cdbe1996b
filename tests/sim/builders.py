"""Small made-up traces and a small node for the simulator's tests."""

from __future__ import annotations

import random
from typing import Any

from agentkv.sim.profiles import Profile
from agentkv.sim.run import RunSpec
from agentkv.sim.sweep import Plan, Prepared, prepare, specs
from agentkv.sim.trace import TraceSession, TraceTurn
from agentkv.sim.workload import Options

BLOCK_TOKENS = 64


def small_profile(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "name": "small",
        "pool_tokens": 60_000,
        "bytes_per_token": 1000.0,
        "prefill_tokens_per_s": 20_000.0,
        "prefill_x0_tokens": 30_000.0,
        "decode_step_s": 0.01,
        "kv_read_bytes_per_s": 1e10,
        "load_bytes_per_s": 1e9,
        "store_bytes_per_s": 1e9,
        "max_step_tokens": 2048,
    }
    return Profile(**(fields | changes))


def made_up_trace(seed: int = 0, num_sessions: int = 12) -> list[TraceSession]:
    """Append-only sessions; waits short or long by tool, so that tools predict something."""
    numbers = random.Random(seed)
    sessions = []
    for number in range(num_sessions):
        turns: list[TraceTurn] = []
        size = numbers.randrange(1000, 3000)
        for turn in range(numbers.randrange(3, 9)):
            tool = numbers.choice(("Read", "Bash"))
            mean_s = 0.2 if tool == "Read" else 20.0
            before = turns[-1] if turns else None
            known = before.prompt_tokens + before.output_tokens if before else 0
            output = numbers.randrange(5, 60)
            turns.append(
                TraceTurn(
                    prompt_tokens=size,
                    output_tokens=output,
                    prefix_turn=turn - 1,
                    prefix_tokens=known,
                    wait_s=numbers.expovariate(1 / mean_s),
                    tool=tool,
                    command="pytest -q" if tool == "Bash" else None,
                )
            )
            size += output + numbers.randrange(50, 600)
        sessions.append(TraceSession(f"s{number}", tuple(turns), "made-up", 500))
    return sessions


def small_plan(*policies: str, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "profile": small_profile(),
        "policies": policies or ("lru",),
        "oversubscription": (2.0,),
        "dram": (1.0,),
        "num_seeds": 1,
        "duration_s": 300.0,
        "warmup_s": 60.0,
        "options": Options(block_tokens=BLOCK_TOKENS),
    }
    return Plan(**(fields | changes))


def small_run(*policies: str, **changes: Any) -> tuple[list[RunSpec], Prepared]:
    """The specs of a small sweep over the made-up trace."""
    plan = small_plan(*policies, **changes)
    prepared = prepare(made_up_trace(), plan)
    return list(specs(plan, prepared.totals)), prepared
