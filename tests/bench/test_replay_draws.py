"""How much of a replay's first-token times is chance: its sessions drawn again."""

from typing import Any

import numpy as np
import pytest

from agentkv.bench.replay_draws import DRAWN, NUM_DRAWS, session_draws
from agentkv.bench.replay_stats import METRICS, RATIOS, compare, summarize

STEADY = {f"s{number:02d}": [0.05, 0.06, 0.07] for number in range(11)}
ONE_SLOW = {**STEADY, "s11": [1.0, 1.1, 1.2]}


def rows(system: str, times_s: dict[str, list[float]], seeds: int = 3) -> list[dict[str, Any]]:
    flat = [each for session_s in times_s.values() for each in session_s]
    base: dict[str, Any] = {name: 1.0 for name in (*METRICS, *RATIOS)}
    base |= {"oversubscription": 2.0, "dram": 1.0, "x": 1.0, "token_mismatches": 0}
    found = {f"resume_ttft_p{p}_s": float(np.percentile(flat, p)) for p in (50, 95, 99)}
    found["resume_ttft_mean_s"] = float(np.mean(flat))
    return [
        {**base, **found, "system": system, "seed": seed, "resume_ttft_s": times_s}
        for seed in range(seeds)
    ]


def test_draws_are_those_of_whole_sessions() -> None:
    (row,) = rows("agentkv", ONE_SLOW, seeds=1)
    draws = session_draws(row)
    assert set(draws) == DRAWN
    # The slow session is in no draw (1 - 1/12)^12 of the time, and then all are fast.
    without = np.mean(draws["resume_ttft_p99_s"] < 0.1)
    assert without == pytest.approx((11 / 12) ** 12, abs=4 * 0.5 / NUM_DRAWS**0.5)
    assert set(np.unique(draws["resume_ttft_p99_s"]).tolist()) <= {0.07, 1.0, 1.1, 1.2}


def test_a_draw_has_the_percentiles_and_the_mean_of_its_turns() -> None:
    sessions = {"a": [0.1, 0.4], "b": [0.2], "c": []}
    (row,) = rows("agentkv", sessions, seeds=1)
    draws = session_draws(row)
    weights = np.random.default_rng(0).multinomial(3, [1 / 3] * 3, size=NUM_DRAWS)
    for number, (a, b, _) in enumerate(weights[:200]):
        drawn = [0.1] * a + [0.4] * a + [0.2] * b or [0.1, 0.2, 0.4]
        for name, level in (("p50", 50), ("p95", 95), ("p99", 99)):
            right = np.percentile(drawn, level, method="inverted_cdf")
            assert draws[f"resume_ttft_{name}_s"][number] == pytest.approx(right)
        assert draws["resume_ttft_mean_s"][number] == pytest.approx(np.mean(drawn))


def test_what_a_few_turns_decide_has_a_wide_interval_though_all_seeds_agree() -> None:
    (cell,) = summarize(rows("agentkv", ONE_SLOW))
    p95, hours = cell["estimates"]["resume_ttft_p95_s"], cell["estimates"]["sessions_per_hour"]
    assert p95["low"] < 0.1 < 1.0 <= p95["high"]
    assert (hours["low"], hours["high"]) == (1.0, 1.0), "what has no sessions is drawn by seed"
    (one,) = summarize(rows("agentkv", ONE_SLOW, seeds=1))
    assert one["estimates"]["resume_ttft_p95_s"]["low"] is not None
    assert one["estimates"]["sessions_per_hour"]["low"] is None


def test_what_makes_a_session_slow_for_both_drops_out_of_their_ratio() -> None:
    twice = {name: [2 * each for each in times_s] for name, times_s in ONE_SLOW.items()}
    (found,) = compare([*rows("native", ONE_SLOW), *rows("agentkv", twice)])
    for name in DRAWN:
        ratio = found["ratios"][name]
        assert [ratio[key] for key in ("median", "low", "high")] == pytest.approx([2.0] * 3)


def test_a_run_without_resumed_turns_is_summed_up_by_seed() -> None:
    found = [{**row, "resume_ttft_s": {"a": []}} for row in rows("agentkv", STEADY)]
    assert session_draws(found[0]) == {}
    (cell,) = summarize(found)
    assert cell["estimates"]["resume_ttft_p50_s"]["low"] == pytest.approx(0.06)
