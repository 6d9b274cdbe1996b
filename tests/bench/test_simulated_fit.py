"""The fit gets back the numbers that made-up turns were made with."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from agentkv.bench.simulated_fit import Known, alone, fit, nonnegative
from agentkv.errors import ConfigError

KNOWN = Known(
    pool_tokens=10_000,
    bytes_per_token=1000.0,
    answer_tokens=8,
    max_step_tokens=2048,
    max_running=8,
    is_async=True,
    load_bytes_per_s=1e10,
)
REQUEST_S, REQUEST_TOKEN_S, STEP_S, READ_S = 0.012, 2e-6, 0.004, 1e-6
TOKEN_S, PAIR_S = 60e-6, 5e-8
CALIBRATION = {"context_tokens": 4096, "rounds": 7, "reload_s": 0.0104096, "recompute_s": None}


def turn(start_s: float, prompt: int, new: int, **changes: float) -> dict[str, Any]:
    num_steps = -(-new // 2048)
    first_s = REQUEST_S + REQUEST_TOKEN_S * prompt + num_steps * STEP_S
    first_s += new * TOKEN_S + new * (prompt - new / 2) * PAIR_S
    end_s = start_s + first_s + 7 * (STEP_S + READ_S * prompt)
    times = {"start_s": start_s, "end_s": end_s, "ttft_s": first_s}
    return {**times, "prompt_tokens": prompt, "cached_tokens": prompt - new, **changes}


def turns(count: int = 60) -> list[dict[str, Any]]:
    """One after the other."""
    numbers = random.Random(1)
    prompts = [numbers.randrange(500, 5000) for _ in range(count)]
    return [turn(10.0 * i, p, numbers.randrange(1, p)) for i, p in enumerate(prompts)]


def test_the_numbers_come_back() -> None:
    fitted = fit([turns()], CALIBRATION, KNOWN)
    profile = fitted.profile
    assert profile.request_s == pytest.approx(REQUEST_S, rel=1e-3)
    assert profile.request_token_s == pytest.approx(REQUEST_TOKEN_S, rel=1e-2)
    assert profile.prefill_tokens_per_s == pytest.approx(1 / TOKEN_S, rel=1e-3)
    assert profile.prefill_x0_tokens == pytest.approx(TOKEN_S / PAIR_S, rel=1e-3)
    assert profile.decode_step_s == profile.prefill_step_s == pytest.approx(STEP_S, rel=1e-3)
    assert profile.read_s_per_token == pytest.approx(READ_S, rel=1e-3)
    # Of 10.4096 ms 0.4096 are the copy.
    assert profile.load_latency_s == pytest.approx(0.01, rel=1e-3)
    assert max(map(abs, fitted.residuals_s)) < 1e-6
    assert (fitted.num_alone, fitted.num_turns, fitted.at_once_share) == (60, 60, 0.0)


def test_a_long_prompt_of_the_calibration_counts() -> None:
    """Where turns compute few tokens, only it knows how a long context slows them."""
    short = [turn(10.0 * i, 1000 + 10 * i, 20 + i) for i in range(40)]
    size = 4096.0
    recompute_s = size * TOKEN_S + size * size / 2 * PAIR_S + STEP_S
    fitted = fit([short], {**CALIBRATION, "recompute_s": recompute_s}, KNOWN)
    profile = fitted.profile
    assert profile.prefill_s(2048, 1024) + profile.prefill_s(2048, 3072) == pytest.approx(
        recompute_s - STEP_S, rel=0.01
    )


def test_turns_of_a_machine_that_paused_do_not_count() -> None:
    rows = turns()
    for row in rows[::12]:
        row["end_s"] += 3.0
    fitted = fit([rows], None, KNOWN)
    assert fitted.profile.request_s == pytest.approx(REQUEST_S, rel=0.05)
    assert fitted.profile.prefill_tokens_per_s == pytest.approx(1 / TOKEN_S, rel=0.05)
    assert len(fitted.residuals_s) == 55


def test_answers_that_came_at_once_say_nothing_of_steps() -> None:
    rows = turns()
    for row in rows[::3]:
        row["ttft_s"] = row["end_s"] - row["start_s"]
    fitted = fit([rows], None, KNOWN)
    assert fitted.at_once_share == pytest.approx(1 / 3)
    assert fitted.profile.decode_step_s == pytest.approx(STEP_S, rel=1e-3)


def test_only_turns_beside_which_no_other_was_under_way_count() -> None:
    spans = [(0.0, 1.0), (2.0, 6.0), (3.0, 4.0), (5.0, 7.0), (8.0, 9.0)]
    rows = [{"start_s": start, "end_s": end} for start, end in spans]
    assert [row["start_s"] for row in alone(rows)] == [0.0, 8.0]


def test_too_few_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="only 9 turns"):
        fit([turns(9)], None, KNOWN)


def test_no_part_is_below_zero() -> None:
    features = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    parts = nonnegative(features, np.array([3.0, 2.0, 1.0]))
    assert parts == pytest.approx([2.0, 0.0])
    assert nonnegative(features, features @ [1.0, 2.0]) == pytest.approx([1.0, 2.0])
