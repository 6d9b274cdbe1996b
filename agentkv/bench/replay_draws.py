"""First-token times of one replay, drawn again session by session: how much of them is chance.

Why: a p95 of some 180 turns moves by a quarter when the same sessions are played again, because a
few turns decide it. An interval over seeds alone is narrower than that. Turns of one session are
alike, so sessions are drawn and not turns (the cluster bootstrap; Davison & Hinkley, Bootstrap
Methods and their Application, 1997, section 3.8).
Where: `replay_stats` draws seeds, and within a seed these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NUM_DRAWS: Final = 2_000
_LEVELS: Final = {"resume_ttft_p50_s": 0.50, "resume_ttft_p95_s": 0.95, "resume_ttft_p99_s": 0.99}
_MEAN: Final = "resume_ttft_mean_s"
DRAWN: Final = frozenset((*_LEVELS, _MEAN))
"""The metrics that can be drawn."""


def session_draws(row: Mapping[str, Any]) -> dict[str, Floats]:
    """By metric, in seconds: its value in each of `NUM_DRAWS` draws of the row's sessions.

    The same draws for all systems that played a seed, so that what a session makes slow drops out
    of their ratio. Empty for a row without resumed turns.
    """
    sessions: Sequence[Sequence[float]] = [
        times_s for _, times_s in sorted(row.get("resume_ttft_s", {}).items())
    ]
    if not any(sessions):
        return {}
    times_s = np.concatenate([np.asarray(each, dtype=float) for each in sessions])
    whose = np.repeat(np.arange(len(sessions)), [len(each) for each in sessions])
    order = np.argsort(times_s, kind="stable")
    even = np.full(len(sessions), 1 / len(sessions))
    rng = np.random.default_rng(int(row["seed"]))
    # How often each turn is in each draw: turns sorted by time, one row for a draw.
    weights = rng.multinomial(len(sessions), even, size=NUM_DRAWS)[:, whose[order]]
    return _of_weighted(times_s[order], weights)


def _of_weighted(times_s: Floats, weights: NDArray[np.int64]) -> dict[str, Floats]:
    upto = np.cumsum(weights, axis=1)
    # A draw may consist of sessions that never resumed; it then says what all of them say.
    upto[upto[:, -1] == 0] = np.arange(1, len(times_s) + 1)
    total = upto[:, -1]
    places = {
        name: np.argmax(upto >= np.ceil(level * total)[:, None], axis=1)
        for name, level in _LEVELS.items()
    }
    shares = np.diff(upto, axis=1, prepend=0)
    found: dict[str, Floats] = {name: times_s[place] for name, place in places.items()}
    found[_MEAN] = (shares * times_s).sum(axis=1) / total
    return found
