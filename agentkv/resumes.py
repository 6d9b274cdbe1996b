"""What a turn found when it came back: counted, written to the ledger, held against hindsight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentkv import metrics
from agentkv.appraisal import Appraiser, Deps
from agentkv.entries import resume_fields
from agentkv.geometry import KvFootprint
from agentkv.metrics import Recorder
from agentkv.policy import Action
from agentkv.regret import Found, hindsight
from agentkv.sessions import Pause, Turn


def record_resume(
    deps: Deps,
    appraiser: Appraiser,
    turn: Turn,
    pause: Pause,
    gpu_hit_tokens: int,
    dram_hit_tokens: int,
) -> str:
    """The turn after `pause` got its blocks; so many of its tokens were in the pool and in DRAM.

    Returns the source of most of the KV that it had before, or "new" if it had none.
    """
    recomputed = max(0, turn.known_tokens - gpu_hit_tokens - dram_hit_tokens)
    tier = _tier(gpu_hit_tokens, dram_hit_tokens, turn.promoted)
    wait_s = turn.arrived_s - pause.started_s
    deps.recorder.count(metrics.RESUMES, tier)
    queued_s = max(0.0, deps.clock.monotonic_s() - turn.arrived_s)
    deps.recorder.sample(metrics.RESUME_WAIT, tier, value=queued_s)
    sources = _tokens_by_source(turn, gpu_hit_tokens, dram_hit_tokens, recomputed)
    for source, num_tokens in sources.items():
        deps.recorder.count(metrics.RESUME_TOKENS, source, by=num_tokens)
    action = action_of(pause)
    deps.ledger.record(
        "resume",
        **resume_fields(turn, pause, action, wait_s),
        queued_s=queued_s,
        gpu_hit_tokens=gpu_hit_tokens,
        dram_hit_tokens=dram_hit_tokens,
        recomputed_tokens=recomputed,
        tier=tier,
        demoted_blocks=dict(pause.demoted),
        promoted_tokens=dict(pause.promoted + turn.promoted),
        **_hindsight_fields(deps, appraiser.pressure, turn, pause, recomputed, dram_hit_tokens),
    )
    known = {source: number for source, number in sources.items() if source != "new" and number}
    return max(known, key=known.__getitem__, default="new")


def count_prefix(recorder: Recorder, turn: Turn, found_tokens: int) -> None:
    """Of any turn, each time that it gets blocks: a preempted one has to find them again."""
    known = "inferred" if turn.session.is_inferred else "named"
    session = known if turn.number else "first"
    found = min(found_tokens, turn.prompt_tokens)
    recorder.count(metrics.PREFIX_TOKENS, session, "yes", by=found)
    recorder.count(metrics.PREFIX_TOKENS, session, "no", by=turn.prompt_tokens - found)


def _hindsight_fields(
    deps: Deps, price: float, turn: Turn, pause: Pause, recomputed: int, dram_hit_tokens: int
) -> dict[str, Any]:
    """What the pause cost and would have; all None where its decisions are forgotten."""
    now_s = deps.clock.monotonic_s()
    closed = deps.ledger.choices.close(pause.pause_id, now_s=now_s, price=price)
    if closed is None:
        return dict.fromkeys(("cost_s", "hindsight_s", "best_action", "regret_s"))
    kv_bytes = closed.choices[-1].kv_bytes
    found = _found(deps.footprint, turn, pause, kv_bytes, recomputed, dram_hit_tokens)
    known = hindsight(closed, found, arrived_s=turn.arrived_s)
    deps.recorder.count(metrics.REGRET_SECONDS, action_of(pause).value, by=known.regret_s)
    return {
        "cost_s": known.cost_s,
        "hindsight_s": known.costs_s,
        "best_action": known.best,
        "regret_s": known.regret_s,
    }


def _found(
    footprint: KvFootprint, turn: Turn, pause: Pause, kv_bytes: int, recomputed: int, loaded: int
) -> Found:
    """Tokens as shares of those that the session alone had: they are the last of its context."""
    context = pause.context_tokens
    private = context * min(1.0, kv_bytes / max(1, footprint.bytes_for(context)))
    useful = max(0.0, private - max(0, context - turn.known_tokens))
    if useful <= 0:
        return Found(useful=0.0, loaded=0.0, computed=0.0)
    recomputed_tokens = min(recomputed, useful)
    loaded_tokens = min(loaded, useful - recomputed_tokens)
    is_up = min(1.0, sum(turn.promoted.values()) / useful)
    return Found(
        useful=useful / private,
        loaded=loaded_tokens / private,
        computed=recomputed_tokens / private,
        slow_s=pause.slow_s * is_up,
    )


def action_of(pause: Pause) -> Action:
    """What was decided; a pause is held until something is."""
    return pause.decision.action if pause.decision is not None else Action.HOLD


def _tokens_by_source(turn: Turn, gpu: int, dram: int, recomputed: int) -> dict[str, int]:
    new = max(0, turn.prompt_tokens - gpu - dram - recomputed)
    sources = {"gpu": gpu, "recomputed": recomputed, "new": new}
    for name, num_tokens in turn.promoted.items():
        sources[name] = min(num_tokens, dram)
        dram -= sources[name]
    return {**sources, "dram": dram}


def _tier(gpu_hit_tokens: int, dram_hit_tokens: int, promoted: Mapping[str, int]) -> str:
    """The slowest tier that the turn had to wait for."""
    if dram_hit_tokens and promoted:
        return next(iter(promoted))
    if gpu_hit_tokens and dram_hit_tokens:
        return "mixed"
    if gpu_hit_tokens:
        return "gpu"
    return "dram" if dram_hit_tokens else "none"
