"""What the replayed engine takes for its work, from turns that lost no KV: the simulator's profile.

What: of the turns of `infinite` and `stock`, on which no DRAM, no loads and no policy bear, those
that ran alone: seconds of a whole turn over prompt and new tokens (least squares without negative
parts), decode steps from the time after the first token; from the calibration what a long prompt
takes to compute and to load. What is left over is kept: the simulator draws from it.
Why from there: of what is predicted (native's and agentkv's hits, recomputes and first-token
times) nothing is known to the profile. Where: `simulated` fits once for a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from agentkv.bench.replay_measures import AT_ONCE_S
from agentkv.errors import ConfigError
from agentkv.sim.profiles import Profile

Row = Mapping[str, Any]
Floats = npt.NDArray[np.float64]

MIN_TURNS: Final = 10
_OUTLIER: Final = 6.0
"""Turns off by more than this many median absolute residuals: the machine did something else."""

_REWEIGHTINGS: Final = 20
_LEAST_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Known:
    """What the replay's file says outright."""

    pool_tokens: int
    bytes_per_token: float
    answer_tokens: int
    max_step_tokens: int
    max_running: int
    is_async: bool
    load_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """`residuals_s`: by how much single turns took longer than the profile says, or less.

    `at_once_share`: answers that reached the client as a whole, whatever the engine did. `pace`:
    the factor of `simulated_pace` on the profile's times.
    """

    profile: Profile
    residuals_s: tuple[float, ...]
    at_once_share: float
    num_turns: int
    num_alone: int
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class _Work:
    """Turns as equations: `features` x what is looked for = `seconds`; a row each."""

    features: Floats
    seconds: Floats

    def solved(self) -> tuple[Floats, Floats]:
        """(what is looked for, what is left of each equation)."""
        parts = nonnegative(self.features, self.seconds)
        return parts, self.seconds - self.features @ parts

    def without_outliers(self) -> _Work:
        """Judged by a fit of least absolute residuals (reweighted least squares), which a few of
        them do not move."""
        weights = np.ones_like(self.seconds)
        for _ in range(_REWEIGHTINGS):
            parts = nonnegative(self.features * weights[:, None], self.seconds * weights)
            left = np.abs(self.seconds - self.features @ parts)
            usual_s = max(float(np.median(left)), _LEAST_S)
            weights = 1 / np.sqrt(np.maximum(left, usual_s))
        near = left <= _OUTLIER * usual_s
        return _Work(self.features[near], self.seconds[near])

    def plus(self, other: _Work) -> _Work:
        return _Work(
            np.vstack([self.features, other.features]),
            np.concatenate([self.seconds, other.seconds]),
        )


def fit(turns: Sequence[Sequence[Row]], calibration: Row | None, known: Known) -> Fitted:
    """From the turns of one or more replays of systems without DRAM.

    Raises ConfigError where there are too few to tell.
    """
    lone = [row for replay in turns for row in alone(replay)]
    late = [row for row in lone if _after_first_s(row) >= AT_ONCE_S]
    if len(late) < MIN_TURNS:
        raise ConfigError(
            f"REPLAY: only {len(late)} turns without DRAM ran alone, {MIN_TURNS} are needed to fit "
            "a profile; replay with more sessions or seeds, or fewer agents"
        )
    base_s, read_s = _decode(late, known.answer_tokens)
    work = _work(lone, base_s, read_s, known).without_outliers()
    parts, left = work.plus(_long_prompt(calibration, base_s, known, lone)).solved()
    everything = [row for replay in turns for row in replay]
    at_once = sum(_after_first_s(row) < AT_ONCE_S for row in everything) / len(everything)
    return Fitted(
        profile=_profile(parts, base_s, read_s, calibration, known),
        residuals_s=tuple(float(each) for each in left[: len(work.seconds)]),
        at_once_share=at_once,
        num_turns=len(everything),
        num_alone=len(lone),
    )


def alone(turns: Sequence[Row]) -> Iterator[Row]:
    """Turns beside which no other was under way."""
    ordered = sorted(turns, key=lambda row: float(row["start_s"]))
    until_s = -np.inf
    for row, following in itertools.zip_longest(ordered, ordered[1:]):
        is_alone = row["start_s"] >= until_s
        until_s = max(until_s, row["end_s"])
        if is_alone and (following is None or following["start_s"] >= row["end_s"]):
            yield row


def nonnegative(features: Floats, values: Floats) -> Floats:
    """Least squares with no part below 0: the best over all sets of parts that are not 0."""
    scale = np.maximum(np.abs(features).max(axis=0), _LEAST_S)
    scaled = features / scale
    num_parts = features.shape[1]
    best, best_error = np.zeros(num_parts), float(np.square(values).sum())
    for size in range(1, num_parts + 1):
        for free in itertools.combinations(range(num_parts), size):
            part = np.linalg.lstsq(scaled[:, free], values, rcond=None)[0]
            error = float(np.square(scaled[:, free] @ part - values).sum())
            if part.min() >= 0 and error < best_error:
                best, best_error = np.zeros(num_parts), error
                best[list(free)] = part
    parts: Floats = best / scale
    return parts


def _after_first_s(row: Row) -> float:
    return float(row["end_s"] - row["start_s"] - row["ttft_s"])


def _decode(rows: Sequence[Row], answer_tokens: int) -> tuple[float, float]:
    """Seconds of a decode step without context, and for each token of it."""
    steps = max(1, answer_tokens - 1)
    times = np.array([_after_first_s(row) / steps for row in rows])
    context = np.array([float(row["prompt_tokens"]) for row in rows])
    work = _Work(np.column_stack([np.ones_like(context), context]), times)
    base_s, read_s = work.without_outliers().solved()[0]
    return max(float(base_s), _LEAST_S), max(float(read_s), _LEAST_S)


def _work(rows: Sequence[Row], base_s: float, read_s: float, known: Known) -> _Work:
    """Looked for: seconds of a request, a prompt token, a new token, a pair of positions.

    Whole turns, since a first token may come late, less their decode steps and what each step
    takes whatever its size.
    """
    features, seconds = [], []
    for row in rows:
        prompt = float(row["prompt_tokens"])
        new = prompt - row["cached_tokens"]
        num_steps = max(1.0, np.ceil(new / known.max_step_tokens))
        decode_s = (known.answer_tokens - 1) * (base_s + read_s * prompt)
        features.append([1.0, prompt, new, new * (prompt - new / 2)])
        seconds.append(row["end_s"] - row["start_s"] - decode_s - num_steps * base_s)
    return _Work(np.array(features), np.array(seconds))


def _long_prompt(
    calibration: Row | None, base_s: float, known: Known, rows: Sequence[Row]
) -> _Work:
    """What the calibration says of computing a long prompt beyond finding it, unless turns say it
    themselves; weighs as much as its rounds."""
    most_new = max(row["prompt_tokens"] - row["cached_tokens"] for row in rows)
    if calibration is None or not calibration["recompute_s"]:
        return _Work(np.empty((0, 4)), np.empty(0))
    size = float(calibration["context_tokens"])
    if most_new > size / 2:
        return _Work(np.empty((0, 4)), np.empty(0))
    more_steps = np.ceil(size / known.max_step_tokens) - 1
    weight = np.sqrt(calibration["rounds"])
    features = np.array([[0.0, 0.0, weight * size, weight * size * size / 2]])
    return _Work(features, np.array([weight * (calibration["recompute_s"] - more_steps * base_s)]))


def _profile(
    parts: Floats, base_s: float, read_s: float, calibration: Row | None, known: Known
) -> Profile:
    request_s, request_token_s, token_s, pair_s = (float(part) for part in parts)
    token_s, pair_s = max(token_s, _LEAST_S), max(pair_s, _LEAST_S**2)
    return Profile(
        name="fitted",
        pool_tokens=known.pool_tokens,
        bytes_per_token=known.bytes_per_token,
        prefill_tokens_per_s=1 / token_s,
        prefill_x0_tokens=token_s / pair_s,
        prefill_step_s=base_s,
        decode_step_s=base_s,
        kv_read_bytes_per_s=known.bytes_per_token / read_s,
        load_bytes_per_s=known.load_bytes_per_s,
        store_bytes_per_s=known.load_bytes_per_s,
        load_latency_s=_load_latency_s(calibration, known),
        max_step_tokens=known.max_step_tokens,
        max_running=known.max_running,
        request_s=request_s,
        request_token_s=request_token_s,
        is_async=known.is_async,
    )


def _load_latency_s(calibration: Row | None, known: Known) -> float:
    """Of a load, beyond the copy itself."""
    if calibration is None or calibration["reload_s"] is None:
        return 0.0
    num_bytes = float(calibration["context_tokens"] * known.bytes_per_token)
    return max(0.0, float(calibration["reload_s"]) - num_bytes / known.load_bytes_per_s)
