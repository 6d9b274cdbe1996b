"""What a server says, made with the API's own response models."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentkv.connectors.endpoint.counters import Counters
from agentkv.connectors.endpoint.models import (
    EngineState,
    LedgerRecord,
    Live,
    Pause,
    Session,
    SessionLedger,
    Sessions,
    State,
)
from agentkv.doctor.prometheus_text import parse
from agentkv.top.fetch import Look

REASON = "bash: wait p50 6.95 s > break-even 0.00145 s at pressure 1"


def session(name: str = "run-1", state: str = "running", **changes: Any) -> Session:
    """One that runs."""
    return Session(
        session_id=name,
        state=state,
        num_turns=3,
        context_tokens=changes.pop("context_tokens", 4_000),
        is_inferred=False,
        idle_s=1.5,
        **changes,
    )


def paused(name: str = "run-1", returns_in_s: float | None = 5.0, **changes: Any) -> Session:
    """One that waits for its tool, held in the pool."""
    context_tokens = changes.pop("context_tokens", 4_000)
    fields = {"tool": "bash", "since_s": 12.0, "is_tool_done": False, "action": "hold"}
    fields |= {"reason": "nobody waits for blocks: holding is free", "is_given_up": False}
    pause = Pause(returns_in_s=returns_in_s, **{**fields, **changes})
    return session(name, "paused", pause=pause, context_tokens=context_tokens)


def many(number: int) -> list[Session]:
    """A busy server's sessions: of every state, held, swapped, dropped and parked."""
    kinds: Sequence[Mapping[str, Any]] = (
        {},
        {"action": "swap", "is_given_up": True, "reason": REASON, "tool": "pytest"},
        {"action": "swap", "is_given_up": True, "parked_in": "ssd", "tool": "human"},
        {"action": "recompute", "is_given_up": True, "tool": "web_search"},
        {"is_tool_done": True, "tool": "read_file"},
    )
    found = []
    for index in range(number):
        name, tokens = f"agent-{index:03}", 1_000 + 137 * (index % 71)
        if index % 9 == 0:
            found.append(session(name, "running", context_tokens=tokens))
        elif index % 31 == 1:
            found.append(session(name, "resuming", context_tokens=tokens))
        else:
            changes = dict(kinds[index % len(kinds)]) | {"since_s": 0.4 * (index % 50) ** 1.8}
            found.append(paused(name, 0.3 * (index % 40) ** 2, context_tokens=tokens, **changes))
    return found


def engine(rank: int = 0, **changes: Any) -> EngineState:
    """One with a pool of a hundred blocks and DRAM."""
    dram = {"used_bytes": 12 << 30, "size_bytes": 32 << 30, "is_available": True}
    fields: dict[str, Any] = {"pool_blocks": 100, "free_blocks": 70, "pressure": 0.25}
    fields |= {"tiers": {"dram": dram}, "sessions": {"running": 1, "paused": 1}}
    return EngineState(rank=rank, **{**fields, **changes})


def state(*engines: EngineState) -> State:
    return State(engines=list(engines) or [engine()], endpoint=Counters())


def live(sessions: Sequence[Session], told: State, age_s: float = 0.0) -> Live:
    """State and sessions in one, `age_s` old."""
    now_s = time.time()
    parts: dict[str, Any] = {"engines": told.engines, "endpoint": told.endpoint}
    return Live(
        **parts,
        now_s=now_s,
        as_of_s=now_s - age_s,
        started_s=1_700_000_000.0,
        sessions=list(sessions),
        records=[],
        is_cut=False,
    )


def ledger(name: str) -> SessionLedger:
    """A pause that is over."""
    pause = LedgerRecord(
        kind="pause",
        t=1_700_000_000.0,
        pause_id=1,
        action="swap",
        reason=REASON,
        estimate_p50_s=6.95,
        **{"turn": 1, "tool": "bash", "context_tokens": 4_000, "kv_bytes": 5 << 20},
    )
    resume = LedgerRecord(
        kind="resume", t=1_700_000_009.0, pause_id=1, wait_s=9.0, cost_s=0.1, regret_s=0.05
    )
    return SessionLedger(session_id=name, state="paused", records=[pause, resume])


def listed(sessions: Sequence[Session]) -> Sessions:
    return Sessions(sessions=list(sessions))


METRICS = """\
# HELP agentkv:decisions_total Pause decisions.
vllm:cache_config_info{block_size="16"} 1.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:something_else_total{engine="0"} 7.0
agentkv:decisions_total{engine="0",action="hold"} 1204.0
agentkv:decisions_total{engine="0",action="swap"} 310.0
agentkv:regret_seconds_total{engine="0",action="swap"} 12.5
agentkv:forecasts_total{engine="0",outcome="inside"} 800.0
agentkv:forecasts_total{engine="0",outcome="earlier"} 150.0
agentkv:forecasts_total{engine="0",outcome="later"} 50.0
agentkv:resume_tokens_total{engine="0",source="gpu"} 60.0
agentkv:resume_tokens_total{engine="0",source="dram"} 30.0
agentkv:resume_tokens_total{engine="0",source="recomputed"} 10.0
agentkv:resume_tokens_total{engine="0",source="new"} 500.0
agentkv:prefetches_total{engine="0",trigger="clock"} 12.0
agentkv:prefetch_outcomes_total{engine="0",outcome="useful"} 9.0
agentkv:prefetch_outcomes_total{engine="0",outcome="late"} 3.0
agentkv:resume_ttft_seconds_bucket{engine="0",source="gpu",le="0.01"} 50.0
agentkv:resume_ttft_seconds_bucket{engine="0",source="gpu",le="0.1"} 96.0
agentkv:resume_ttft_seconds_bucket{engine="0",source="gpu",le="+Inf"} 100.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 100.0
agentkv:tier_bytes{engine="0",tier="ssd"} 5.0e9
agentkv:tier_bytes{engine="0",tier="dram"} 1.0e9
agentkv:tier_available{engine="0",tier="ssd"} 0.0
"""


def look(
    sessions: Sequence[Session] = (),
    told: State | None = None,
    metrics: str = METRICS,
    *,
    taken_s: float = 100.0,
    age_s: float = 0.0,
) -> Look:
    """What `Source.look` makes of it."""
    return Look(
        taken_s=taken_s,
        age_s=age_s,
        state=(told or state()).model_dump(mode="json"),
        sessions=[each.model_dump(mode="json") for each in sessions],
        samples=parse(metrics),
    )
