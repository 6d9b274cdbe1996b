"""How much longer turns take beside others than a fit to turns alone says: one factor on it all.

What: the replays that the profile was fitted to are simulated, and all of an engine's times are
stretched by a factor until their turns, those that met others too, take as long as they did, in
the geometric mean. Why: turns that run at the same time share cores and caches, and no turn alone
shows that. Where: after `simulated_fit`, before anything is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from agentkv.bench.replay_settings import ReplaySettings
from agentkv.bench.simulated_fit import Fitted
from agentkv.bench.simulated_play import Replayed, play
from agentkv.sim.profiles import Profile
from agentkv.sim.scripted import Script

Row = Mapping[str, Any]
Noise = Callable[[], float]

_NUM_DRAWS: Final = 5
_HALVINGS: Final = 7
_RANGE: Final = (0.8, 1.6)


@dataclass(frozen=True, slots=True)
class Source:
    """A replay that the profile was fitted to: what was played, and how its turns went."""

    what: Replayed
    scripts: Sequence[Script]
    warm_up: Sequence[Script]
    turns: Sequence[Row]


def paced(
    fitted: Fitted,
    sources: Sequence[Source],
    settings: ReplaySettings,
    noise: Callable[[Fitted, int], Noise],
) -> Fitted:
    """The fit with its `pace`; `noise` gives the residuals of a draw, by its number."""
    rows = [row for source in sources for row in source.turns]
    wanted = float(np.mean([np.log(row["end_s"] - row["start_s"]) for row in rows]))
    low, high = _RANGE
    for _ in range(_HALVINGS):
        pace = (low + high) / 2
        candidate = slower(fitted, pace)
        found: list[float] = []
        for source in sources:
            for number in range(_NUM_DRAWS):
                served = play(
                    source.what,
                    source.scripts,
                    candidate.profile,
                    settings,
                    source.warm_up,
                    noise(candidate, number),
                )
                found.extend(np.log(turn.end_s - turn.sent_s) for turn in served)
        low, high = (pace, high) if np.mean(found) < wanted else (low, pace)
    return slower(fitted, (low + high) / 2)


def slower(fitted: Fitted, pace: float) -> Fitted:
    """All of the engine's times `pace` times as long."""
    profile = fitted.profile
    changes = {
        "prefill_tokens_per_s": profile.prefill_tokens_per_s / pace,
        "prefill_step_s": profile.prefill_step_s * pace,
        "decode_step_s": profile.decode_step_s * pace,
        "kv_read_bytes_per_s": profile.kv_read_bytes_per_s / pace,
        "request_s": profile.request_s * pace,
        "request_token_s": profile.request_token_s * pace,
    }
    return replace(fitted, pace=pace, profile=Profile(**{**profile.model_dump(), **changes}))
