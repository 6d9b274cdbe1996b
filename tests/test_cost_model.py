"""Break-even worked numbers, and what the learned curves must survive."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.cost_model import (
    NEUTRAL_PREFILL,
    CostModel,
    LinkSpeed,
    PrefillCoefficients,
    PrefillCurve,
    Prices,
    break_even_s,
    hold_cost_byte_s,
    prefetch_start_s,
    swap_feasible,
)
from agentkv.geometry import attended_pairs, recompute_linear_s

GIB, GB = 2**30, 10**9
M_70B = 327_680
TIGHT = Prices(hbm=1.0, dram=0.0)
TRUE = PrefillCoefficients(step_s=0.012, token_s=4e-5, pair_s=1.3e-9)  # of an 8B on a fast GPU


def true_s(new_tokens: int, cached_tokens: int, coefficients: PrefillCoefficients = TRUE) -> float:
    return coefficients.seconds(1, new_tokens, attended_pairs(new_tokens, cached_tokens))


def feed(
    curve: PrefillCurve,
    num_steps: int,
    *,
    seed: int = 0,
    noise: float = 0.1,
    max_context: int = 65_536,
    disturb: Callable[[random.Random, float], float] = lambda rng, seconds: seconds,
    coefficients: PrefillCoefficients = TRUE,
) -> PrefillCurve:
    rng = random.Random(seed)
    for _ in range(num_steps):
        new, cached = int(2 ** rng.uniform(4, 13)), rng.randrange(max_context)
        seconds = true_s(new, cached, coefficients) * math.exp(rng.gauss(0, noise))
        pairs = attended_pairs(new, cached)
        curve.observe(new_tokens=new, pairs=pairs, seconds=disturb(rng, seconds))
    return curve


def assert_close_to_truth(curve: PrefillCurve, *, within: float) -> None:
    for new, cached in [(512, 0), (4096, 16_384), (8192, 65_536)]:
        assert curve.seconds(new, cached) == pytest.approx(true_s(new, cached), rel=within)


def test_the_curve_is_found_under_noise() -> None:
    assert_close_to_truth(feed(PrefillCurve(), 300), within=0.1)


def test_twenty_steps_are_enough_to_decide_with() -> None:
    assert_close_to_truth(feed(PrefillCurve(), 20), within=0.35)


def test_pauses_and_compile_steps_hardly_move_the_curve() -> None:
    def stall(rng: random.Random, seconds: float) -> float:
        return seconds + rng.choice([0.3, 5.0, 30.0]) if rng.random() < 0.05 else seconds

    assert_close_to_truth(feed(PrefillCurve(), 300, disturb=stall), within=0.15)


def test_steps_that_share_the_machine_with_other_work_lose_weight() -> None:
    def share(rng: random.Random, seconds: float) -> float:
        return 2.5 * seconds if rng.random() < 0.2 else seconds

    assert_close_to_truth(feed(PrefillCurve(), 400, noise=0.03, disturb=share), within=0.12)


def test_a_first_step_that_compiles_is_soon_outweighed() -> None:
    curve = PrefillCurve()
    curve.observe(new_tokens=512, pairs=attended_pairs(512), seconds=30.0)

    assert_close_to_truth(feed(curve, 40), within=0.25)


def test_short_prompts_do_not_wipe_out_what_long_ones_taught() -> None:
    curve = feed(PrefillCurve(), 300, max_context=131_072)
    feed(curve, 10_000, seed=1, max_context=1000)

    assert curve.seconds(4096, 100_000) == pytest.approx(true_s(4096, 100_000), rel=0.1)


def test_the_curve_follows_a_machine_that_slows_down() -> None:
    curve = feed(PrefillCurve(), 300)
    slower = PrefillCoefficients(TRUE.step_s * 2, TRUE.token_s * 2, TRUE.pair_s * 2)
    feed(curve, 250, seed=1, coefficients=slower)

    assert curve.seconds(4096, 16_384) == pytest.approx(2 * true_s(4096, 16_384), rel=0.1)


def test_before_the_first_step_recompute_looks_dear() -> None:
    curve = PrefillCurve()

    assert curve.num_observations == 0
    assert curve.coefficients == NEUTRAL_PREFILL
    assert curve.seconds(1000) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize("field", ["new_tokens", "pairs", "seconds"])
def test_nonsense_is_not_observed(field: str, bad: float) -> None:
    curve = PrefillCurve()
    step = {"new_tokens": 100, "pairs": 5050.0, "seconds": 0.1} | {field: bad}
    curve.observe(**step)  # type: ignore[arg-type]

    assert curve.num_observations == 0
    assert curve.coefficients == NEUTRAL_PREFILL


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.integers(0, 10**7), st.floats(1e-6, 3000)), max_size=60
    )
)
def test_any_timings_leave_a_finite_curve_that_never_falls(
    steps: list[tuple[int, int, float]],
) -> None:
    curve = PrefillCurve()
    for new, cached, seconds in steps:
        curve.observe(new_tokens=new, pairs=attended_pairs(new, cached), seconds=seconds)
    fit = curve.coefficients

    assert curve.num_observations == len(steps)
    assert all(0 <= c < math.inf for c in (fit.step_s, fit.token_s, fit.pair_s))
    assert 0 < curve.seconds(1) <= curve.seconds(1000) <= curve.seconds(1000, 50_000) < math.inf


def test_a_curve_that_would_turn_negative_is_refitted_not_cut() -> None:
    curve, flat_s = PrefillCurve(), 0.05
    rng = random.Random(0)
    for _ in range(200):  # longer contexts seem faster: the pair term wants to be negative
        new, cached = 64, rng.randrange(100_000)
        seconds = flat_s * (1 - cached / 1e6)
        curve.observe(new_tokens=new, pairs=attended_pairs(new, cached), seconds=seconds)

    assert curve.coefficients.pair_s == 0.0
    assert curve.seconds(64, 50_000) == pytest.approx(flat_s * 0.95, rel=0.05)


def test_an_empty_prefill_takes_no_time() -> None:
    assert PrefillCurve().seconds(0, 1000) == 0.0


def test_a_link_starts_at_its_measured_speed() -> None:
    link = LinkSpeed(20e9, latency_s=0.001)

    assert link.bytes_per_s == pytest.approx(20e9)
    assert link.seconds(20 * 10**9) == pytest.approx(1.001)
    assert link.seconds(0) == 0.0


def test_a_link_learns_the_speed_of_its_copies() -> None:
    link = LinkSpeed(20e9, latency_s=0.001)
    for _ in range(40):
        link.observe(64 * 2**20, 0.001 + 64 * 2**20 / 5e9)

    assert link.bytes_per_s == pytest.approx(5e9, rel=0.01)


def test_large_copies_count_more_than_small_ones() -> None:
    small, large = LinkSpeed(10e9), LinkSpeed(10e9)
    small.observe(2**16, 2**16 / 5e9)
    large.observe(2**28, 2**28 / 5e9)

    assert small.bytes_per_s == pytest.approx(10e9, rel=0.01)
    assert large.bytes_per_s == pytest.approx(5e9, rel=0.05)


def test_one_stalled_copy_does_not_poison_a_link() -> None:
    link = LinkSpeed(10e9)
    link.observe(2**20, 10.0)

    assert link.bytes_per_s > 8e9


@pytest.mark.parametrize(
    ("num_bytes", "seconds"),
    [(0, 1.0), (-5, 1.0), (100, 0.0), (100, -1.0), (100, math.nan), (100, math.inf), (10**400, 1)],
)
def test_nonsense_copies_are_ignored(num_bytes: int, seconds: float) -> None:
    link = LinkSpeed(10e9)
    link.observe(num_bytes, seconds)

    assert link.bytes_per_s == 10e9


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(1e-7, 3600)), max_size=200))
def test_any_copies_leave_a_usable_link(copies: list[tuple[int, float]]) -> None:
    link = LinkSpeed(10e9, latency_s=0.01)
    for num_bytes, seconds in copies:
        link.observe(num_bytes, seconds)

    assert 0 < link.bytes_per_s < math.inf
    assert 0 < link.seconds(1) <= link.seconds(10**9) < math.inf


@pytest.mark.parametrize(("bytes_per_s", "latency_s"), [(0, 0), (-1, 0), (math.nan, 0), (1e9, -1)])
def test_a_link_needs_a_real_start_value(bytes_per_s: float, latency_s: float) -> None:
    with pytest.raises(ValueError, match="no link"):
        LinkSpeed(bytes_per_s, latency_s)


def make_cost_model(
    *,
    coefficients: PrefillCoefficients = TRUE,
    bytes_per_s: float = 20e9,
    latency_s: float = 0.002,
    max_step_tokens: int = 8192,
) -> CostModel:
    return CostModel(
        PrefillCurve(prior=coefficients),
        LinkSpeed(bytes_per_s, latency_s),
        LinkSpeed(bytes_per_s / 2),
        max_step_tokens=max_step_tokens,
    )


def test_recompute_charges_only_what_is_gone() -> None:
    costs = make_cost_model()
    everything = costs.recompute_s(32_768)
    half = costs.recompute_s(32_768, cached_tokens=16_384)

    assert costs.recompute_s(1000, cached_tokens=1000) == 0.0
    assert costs.recompute_s(16_384) + half == pytest.approx(everything)
    assert half > everything / 2  # the second half attends to the first


def test_recompute_charges_the_further_steps_of_a_long_prefill() -> None:
    costs = make_cost_model()
    more_steps = costs.recompute_s(32_768, max_step_tokens=2048) - costs.recompute_s(32_768)

    assert more_steps == pytest.approx((32_768 / 2048 - 32_768 / 8192) * TRUE.step_s)


def test_store_and_load_use_their_own_links() -> None:
    costs = make_cost_model()

    assert costs.reload_s(20e9) == pytest.approx(1.002)
    assert costs.store_s(20e9) == pytest.approx(2.0)


@given(
    token_s=st.floats(1e-7, 1e-2),
    pair_s=st.one_of(st.just(0.0), st.floats(1e-13, 1e-6)),
    bytes_per_token=st.floats(1e2, 1e6),
    bytes_per_s=st.floats(1e8, 1e12),
    latency_s=st.floats(0, 1),
    fixed_bytes=st.integers(0, 10**8),
)
def test_the_minimum_hit_is_where_reload_begins_to_win(
    token_s: float,
    pair_s: float,
    bytes_per_token: float,
    bytes_per_s: float,
    latency_s: float,
    fixed_bytes: int,
) -> None:
    costs = make_cost_model(
        coefficients=PrefillCoefficients(0.01, token_s, pair_s),
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
    )

    def saved_s(tokens: int) -> float:
        return costs.recompute_s(tokens) - costs.reload_s(fixed_bytes + tokens * bytes_per_token)

    least = costs.min_load_tokens(bytes_per_token, fixed_bytes)
    if math.isinf(least):
        assert saved_s(10**6) <= 1e-9
        return
    assert least >= 1
    assert saved_s(int(least * 1.01) + 1) > 0
    if least > 100:
        assert saved_s(int(least * 0.99) - 1) < 0


def test_a_link_slower_than_recompute_never_pays() -> None:
    linear = PrefillCoefficients(step_s=0.0, token_s=1e-5, pair_s=0.0)
    costs = make_cost_model(coefficients=linear, bytes_per_s=1e9)

    assert costs.min_load_tokens(bytes_per_token=131_072) == math.inf


def test_break_even_of_a_32k_context_on_a_fast_link() -> None:
    kv_bytes = 32_768 * M_70B
    reload_s = LinkSpeed(512e9).seconds(kv_bytes)
    recompute_s = recompute_linear_s(70.6e9, 32_768, 3560e12)

    assert kv_bytes / GB == pytest.approx(10.7, abs=0.05)
    assert reload_s * 1e3 == pytest.approx(21, abs=0.5)
    assert break_even_s(kv_bytes, 512e9, TIGHT) * 1e3 == pytest.approx(42, abs=0.5)
    assert recompute_s == pytest.approx(1.3, abs=0.05)
    assert recompute_s / reload_s == pytest.approx(62, abs=0.5)
    assert hold_cost_byte_s(kv_bytes, 45) / GB == pytest.approx(483, abs=0.5)
    assert swap_feasible(45, kv_bytes, 512e9)
    assert not swap_feasible(0.041, kv_bytes, 512e9)


def test_break_even_of_a_16k_context_over_pcie() -> None:
    kv_bytes = 16_384 * M_70B
    recompute_s = recompute_linear_s(70e9, 16_384, 400e12)
    round_trip_s = break_even_s(kv_bytes, 50e9, TIGHT)

    assert kv_bytes == 5 * GIB
    assert recompute_s == pytest.approx(5.735, abs=5e-3)
    assert round_trip_s == pytest.approx(0.215, abs=5e-4)
    assert recompute_s / (round_trip_s / 2) == pytest.approx(53.6, rel=5e-3)


def test_the_price_ratio_and_the_stall_raise_the_break_even() -> None:
    assert break_even_s(10**9, 1e9, Prices(1.0, 0.5), stall_s=0.25) == pytest.approx(4.25)
    assert break_even_s(10**9, 1e9, Prices(1.0, 0.5), transfers=1) == pytest.approx(2.0)
    assert break_even_s(10**9, 1e9, Prices(0.25, 0.05)) == pytest.approx(2 * 0.25 / 0.2)


@pytest.mark.parametrize("hbm", [0.0, 0.04, 0.05])
def test_swap_never_pays_while_gpu_memory_is_no_dearer_than_dram(hbm: float) -> None:
    assert break_even_s(10**9, 1e9, Prices(hbm=hbm, dram=0.05)) == math.inf


def test_the_reload_starts_before_the_earliest_return() -> None:
    assert prefetch_start_s(2.0) == pytest.approx(1.8)
    assert prefetch_start_s(2.0, reload_s=0.1) == pytest.approx(1.8)
    assert prefetch_start_s(2.0, reload_s=0.5) == pytest.approx(1.5)
    assert prefetch_start_s(2.0, reload_s=3.0) == 0.0


def test_what_a_copy_does_not_explain_of_a_load_is_learned_as_its_overhead() -> None:
    costs = CostModel(PrefillCurve(), LinkSpeed(1e9), LinkSpeed(1e9))
    assert costs.reload_s(0) == 0.0
    for _ in range(50):
        costs.observe_load(kv_bytes=1e6, seconds=0.004)
    assert costs.load_overhead_s == pytest.approx(0.003)
    assert costs.reload_s(2e6) == pytest.approx(0.005)
    costs.observe_load(kv_bytes=1e6, seconds=50.0)
    assert costs.load_overhead_s < 0.006
    for seconds in (math.nan, -1.0, 0.0):
        costs.observe_load(kv_bytes=1e6, seconds=seconds)
    assert costs.load_overhead_s < 0.006


def test_the_overhead_of_a_load_makes_short_hits_not_worth_it() -> None:
    curve = PrefillCurve()
    for step in range(1, 200):
        tokens = 64 * (step % 8 + 1)
        curve.observe(new_tokens=tokens, pairs=tokens * tokens / 2, seconds=tokens / 10_000)
    costs = CostModel(curve, LinkSpeed(10e9), LinkSpeed(10e9))
    before = costs.min_load_tokens(bytes_per_token=1000)
    costs.observe_load(kv_bytes=1e6, seconds=0.0101)
    after = costs.min_load_tokens(bytes_per_token=1000)
    assert before < 5 and 80 < after < 130
