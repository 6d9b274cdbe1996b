"""What recorded sessions say: contexts by the time they lie there, waits, and what all share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentkv.errors import ConfigError
from agentkv.plan.quantities import Distribution, weighted
from agentkv.sim.readers import read_traces
from agentkv.sim.trace import fill_waits, guess_shared

_SERVICE_S = 1.0  # a turn lies in memory while it runs too, if only for a nominal second


@dataclass(frozen=True, slots=True)
class Recorded:
    """`context`: prompt tokens, weighted by the wait after them; `shared_tokens`: least of all."""

    context: Distribution
    waits: Distribution
    output_tokens: int
    shared_tokens: int


def read_recorded(path: Path, max_context_tokens: int | None) -> Recorded:
    """Reads a trace as `agentkv simulate` does; turns longer than the model's context are left out.

    Raises ConfigError where no turn is left.
    """
    sessions = guess_shared(fill_waits(read_traces([path])))
    turns = [turn for session in sessions for turn in session.turns]
    limit = float("inf") if max_context_tokens is None else max_context_tokens
    output = round(sum(turn.output_tokens for turn in turns) / max(1, len(turns)))
    kept = [turn for turn in turns if turn.prompt_tokens + output <= limit]
    waits = [t.wait_s or 0.0 for s in sessions for t in s.turns[:-1]]
    if not kept or not waits:
        raise ConfigError(
            f"--trace {path}: no turn with a wait fits the model's context; give another trace"
        )
    shared = min(session.shared_tokens or 0 for session in sessions)
    return Recorded(
        context=weighted(
            [turn.prompt_tokens for turn in kept],
            [_SERVICE_S + (turn.wait_s or 0.0) for turn in kept],
        ),
        waits=weighted(waits, [1.0] * len(waits)),
        output_tokens=output,
        shared_tokens=min(shared, min(turn.prompt_tokens for turn in kept)),
    )
