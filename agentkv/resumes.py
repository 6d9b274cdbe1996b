"""What a turn found when it came back: counted, written to the ledger, held against hindsight."""

from __future__ import annotations

from collections.abc import Mapping

from agentkv import metrics
from agentkv.appraisal import Appraiser, Deps
from agentkv.entries import resume_fields
from agentkv.metrics import Recorder
from agentkv.policy import Action
from agentkv.sessions import Pause, Turn


def record_resume(
    deps: Deps,
    appraiser: Appraiser,
    turn: Turn,
    pause: Pause,
    gpu_hit_tokens: int,
    dram_hit_tokens: int,
) -> None:
    """The turn after `pause` got its blocks; so many of its tokens were in the pool and in DRAM."""
    recomputed = max(0, turn.known_tokens - gpu_hit_tokens - dram_hit_tokens)
    tier = _tier(gpu_hit_tokens, dram_hit_tokens, turn.promoted)
    wait_s = turn.arrived_s - pause.started_s
    deps.recorder.count(metrics.RESUMES, tier)
    _count_tokens(deps.recorder, turn, gpu_hit_tokens, dram_hit_tokens, recomputed)
    action = action_of(pause)
    deps.ledger.record(
        "resume",
        **resume_fields(turn, pause, action, wait_s),
        gpu_hit_tokens=gpu_hit_tokens,
        dram_hit_tokens=dram_hit_tokens,
        recomputed_tokens=recomputed,
        tier=tier,
        demoted_blocks=dict(pause.demoted),
        promoted_tokens=dict(pause.promoted + turn.promoted),
        regret_s=appraiser.regret_s(pause, action, wait_s),
    )


def action_of(pause: Pause) -> Action:
    """What was decided; a pause is held until something is."""
    return pause.decision.action if pause.decision is not None else Action.HOLD


def _count_tokens(recorder: Recorder, turn: Turn, gpu: int, dram: int, recomputed: int) -> None:
    new = max(0, turn.prompt_tokens - gpu - dram - recomputed)
    sources = {"gpu": gpu, "recomputed": recomputed, "new": new}
    for name, num_tokens in turn.promoted.items():
        sources[name] = min(num_tokens, dram)
        dram -= sources[name]
    sources["dram"] = dram
    for source, num_tokens in sources.items():
        recorder.count(metrics.RESUME_TOKENS, source, by=num_tokens)


def _tier(gpu_hit_tokens: int, dram_hit_tokens: int, promoted: Mapping[str, int]) -> str:
    """The slowest tier that the turn had to wait for."""
    if dram_hit_tokens and promoted:
        return next(iter(promoted))
    if gpu_hit_tokens and dram_hit_tokens:
        return "mixed"
    if gpu_hit_tokens:
        return "gpu"
    return "dram" if dram_hit_tokens else "none"
