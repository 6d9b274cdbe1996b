"""Means, intervals and paired differences of known numbers."""

import math

import pytest

from agentkv.sim.summary import cells, interval, table


def _row(policy: str, seed: int, value: float) -> dict[str, object]:
    keys = ("recomputed_share", "mean_resume_stall_s", "p95_resume_stall_s", "sessions_per_hour")
    row: dict[str, object] = dict.fromkeys(keys, value)
    place = {"oversubscription": 2.0, "dram": 1.0, "x": 1.0, "seed": seed}
    return row | place | {"policy": policy, "reload_s": 1.0, "hidden_reload_s": 1.0}


def test_an_interval_is_students_t() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(3.182 * math.sqrt(5 / 3) / 2, rel=1e-3)
    assert math.isnan(interval([1.0]).half)


def test_differences_are_taken_seed_by_seed() -> None:
    rows = [_row("lru", seed, 10.0 * seed) for seed in range(3)]
    rows += [_row("ours", seed, 10.0 * seed - 1) for seed in range(3)]
    native, ours = cells(rows)
    difference = ours.against_base("recomputed_share")
    assert difference is not None
    assert (difference.mean, difference.half) == (-1.0, 0.0)
    assert native.against_base("recomputed_share") is None
    assert table(rows).row_count == 2


def test_without_the_same_seeds_there_is_no_difference() -> None:
    rows = [_row("lru", 0, 1.0), _row("ours", 1, 1.0)]
    assert cells(rows)[1].against_base("recomputed_share") is None
