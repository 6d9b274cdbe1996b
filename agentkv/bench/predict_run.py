"""One run of `agentkv bench predict`: learn from some, then forecast others pause by pause.

What: the loop, for ours with and without the session's history and for every rival. Why: a server
learns as it goes, so each pause is forecast before it is learned; nothing of it is known earlier.
Where: between `predict_pauses` and `predict_report`.

If the files to learn from and to be judged on are the same, they are halved by repository, and the
halves take turns: each is judged by predictors that began with the other.

Without history the sessions are not told apart, and a session's waits are learned when it is over,
so that nothing that is known of a session is its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agentkv.bench.predict_forecasts import RIVALS, Cdf, Forecaster, OurForecaster, teach
from agentkv.bench.predict_pauses import Pause, read_pauses, split_by_group
from agentkv.bench.predict_scores import Scores, score
from agentkv.errors import ConfigError

Batched = Callable[[Sequence[Pause]], Iterable[Sequence[Pause]]]
"""How many pauses are forecast before they are learned."""


@dataclass(frozen=True, slots=True)
class PredictResult:
    """`by_rival` has the scores of each rival; `split` says in words who learned from what.

    `num_fit`: pauses learned before the first forecast, of all turns together.
    """

    split: str
    num_fit: int
    ours: Scores
    no_history: Scores
    by_rival: dict[str, Scores]


class Turn(NamedTuple):
    """What a forecaster begins with, and what it is judged on; no repository is in both."""

    fit: Sequence[Pause]
    judged: Sequence[Pause]


def run_predict(fit: Sequence[Path], trace: Sequence[Path], seed: int) -> PredictResult:
    """Raises ConfigError for files that cannot be read, overlap in part, or hold no pause."""
    turns, split = _turns(fit, trace, seed)
    if not all(turn.fit and turn.judged for turn in turns):
        raise ConfigError(
            "--fit and --trace: both need pauses with a recorded wait_s or gap_s, and --fit some of"
            " repositories that --trace has not"
        )
    waits_s = [pause.wait_s for turn in turns for pause in turn.judged]

    def scores(make: Callable[[], Forecaster], batched: Batched = one_by_one) -> Scores:
        found = [cdf for turn in turns for cdf in _stream(make(), turn, batched)]
        return score(found, waits_s, seed)

    return PredictResult(
        split=split,
        num_fit=sum(len(turn.fit) for turn in turns),
        ours=scores(OurForecaster),
        no_history=scores(lambda: OurForecaster(has_history=False), by_session),
        by_rival={name: scores(make) for name, make in RIVALS.items()},
    )


def one_by_one(pauses: Sequence[Pause]) -> Iterator[Sequence[Pause]]:
    """Each is learned before the next is forecast."""
    return ([pause] for pause in pauses)


def by_session(pauses: Sequence[Pause]) -> Iterator[Sequence[Pause]]:
    """Runs of one session; a trajectory of a sub-agent belongs to its session."""

    def session(pause: Pause) -> str:
        return pause.session.partition("/")[0]

    return (list(run) for _, run in itertools.groupby(pauses, session))


def _turns(fit: Sequence[Path], trace: Sequence[Path], seed: int) -> tuple[list[Turn], str]:
    same = {path.resolve() for path in fit} & {path.resolve() for path in trace}
    if not same:
        fit_pauses, pauses = read_pauses(fit), read_pauses(trace)
        shared = {p.group for p in fit_pauses} & {p.group for p in pauses}
        kept = [p for p in fit_pauses if p.group not in shared]
        left_out = f"; {len(shared)} repositories of --trace left out of --fit" if shared else ""
        return [Turn(kept, pauses)], f"learned from --fit, judged on --trace{left_out}"
    if same != {path.resolve() for path in (*fit, *trace)}:
        raise ConfigError("--fit and --trace: name the same files, or none of them twice")
    one, other, sizes = split_by_group(read_pauses(trace), seed)
    how = f"same files: halved by repository (by session where there is none), seed {seed}"
    who = f"{sizes[0]} and {sizes[1]} take turns, each judged by what began with the other"
    return [Turn(one, other), Turn(other, one)], f"{how}: {who}"


def _stream(forecaster: Forecaster, turn: Turn, batched: Batched) -> Iterator[Cdf]:
    """Forecasts in order; a batch is learned once all of it was forecast."""
    teach(forecaster, turn.fit)
    for batch in batched(turn.judged):
        yield from [forecaster.forecast(pause) for pause in batch]
        teach(forecaster, batch)
