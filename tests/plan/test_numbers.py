"""The documents' worked numbers of capacity, paging and break-even, by the planner itself."""

from __future__ import annotations

import pytest
from plan.builders import GB, GIB, demand, node, passport_8b, passport_70b, plan

from agentkv.cost_model import Prices, hold_cost_byte_s
from agentkv.geometry import expected_waste_ratio, tail_waste_tokens, token_capacity
from agentkv.passport.accelerators import ACCELERATORS
from agentkv.plan.capacity import count_sessions
from agentkv.plan.links import LINKS, Link
from agentkv.plan.node import Node, check_node
from agentkv.plan.waits import Resume, break_even, price_resume


@pytest.mark.parametrize(("context", "sessions"), [(8192, 195), (32_768, 48), (131_072, 12)])
def test_sessions_of_a_node_of_687_gb(context: int, sessions: int) -> None:
    answer = plan(context)

    assert answer.question.node.pool_bytes == pytest.approx(526 * GB)
    assert answer.capacity.sessions == sessions


@pytest.mark.parametrize(("context", "sessions"), [(8192, 192), (131_072, 12)])
def test_sessions_of_a_pool_of_480_gib(context: int, sessions: int) -> None:
    pool = node(hbm_bytes=80 * GIB, weights_bytes=140 * GIB, runtime_bytes=20 * GIB / 8)

    assert pool.pool_bytes == 480 * GIB
    assert plan(context, node=pool).capacity.sessions == sessions


@pytest.mark.parametrize(("shared", "sessions"), [(0, 41), (24_576, 138)])
def test_a_shared_prefix_is_kept_once(shared: int, sessions: int) -> None:
    answer = plan(32_768, output_tokens=2048, shared_tokens=shared, headroom=0.1)

    assert answer.capacity.sessions == sessions


@pytest.mark.parametrize(("shared", "sessions"), [(0, 36), (24_576, 122)])
def test_the_node_of_eight_h100_step_by_step(shared: int, sessions: int) -> None:
    pool = node(hbm_bytes=80 * GB, weights_bytes=140 * GB, runtime_bytes=4.5 * GB)
    answer = plan(32_768, node=pool, output_tokens=2048, shared_tokens=shared, headroom=0.1)

    assert pool.device_weights_bytes == 17.5 * GB
    assert pool.device_pool_bytes == 58 * GB
    assert pool.pool_bytes == 464 * GB
    assert token_capacity(pool.pool_bytes, answer.question.passport.bytes_per_token) == 1_416_015
    assert answer.capacity.token_capacity == pytest.approx(0.9 * 1_416_015, abs=1)
    assert answer.capacity.sessions == sessions
    if shared:
        assert answer.capacity.shared_bytes / GB == pytest.approx(8.05, abs=0.005)


@pytest.mark.parametrize(
    ("context", "sessions"), [(8192, 57), (32_768, 14), (131_072, 3), (1_000_000, 0)]
)
def test_sessions_of_an_8b_on_one_device(context: int, sessions: int) -> None:
    """80 GiB less 16 GB of weights and a reserve of 8 GiB."""
    one = Node(ACCELERATORS["h100"], 1, 1, 1, 80 * GIB, 8 * GIB, 16 * GB)
    found = count_sessions(
        check_node(one), passport_8b().device_footprint, demand(context), block=16
    )

    assert found.sessions == sessions


def test_blocks_of_a_pool_of_60_gib() -> None:
    per_token = passport_70b().device_groups[0].bytes_per_token

    assert 60 * GIB / (16 * per_token) == 98_304
    assert token_capacity(60 * GIB, per_token) == 1_572_864
    assert 256 * 7.5 * per_token == 75 * 2**20
    assert 256 * 31.5 * per_token == 315 * 2**20
    assert tail_waste_tokens(100, 16) == 12


def test_the_tail_of_a_mean_sequence() -> None:
    answer = plan(2048)

    assert answer.capacity.tail_waste == pytest.approx(0.00365, abs=5e-6)
    assert answer.capacity.tail_waste == expected_waste_ratio(2048, 16)


def test_a_pause_of_32k_on_eight_devices() -> None:
    """R = 3,560 TFLOP/s is 3560/7920 of the peak; 64 GB/s a device, as PCIe 5 is sold."""
    resume = price_resume(passport_70b(), node(), 32_768, 3560 / (8 * 990))
    found = break_even(resume, Link("pcie5 raw", 64e9, True), 8, Prices(1.0, 0.0), None)

    assert resume.kv_bytes / GB == pytest.approx(10.7, abs=0.05)
    assert resume.recompute_linear_s == pytest.approx(1.3, abs=0.005)
    assert found.bytes_per_s == 512 * GB
    assert found.reload_s == pytest.approx(0.021, abs=5e-4)
    assert found.round_trip_s == pytest.approx(0.042, abs=5e-4)
    assert resume.recompute_linear_s / found.reload_s == pytest.approx(62, abs=0.5)
    assert hold_cost_byte_s(resume.kv_bytes, 45) / GB == pytest.approx(483, abs=0.5)


def test_a_pause_of_16k_over_one_link() -> None:
    """P = 70e9, R = 400 TFLOP/s, PCIe 5 of one device: 215 ms both ways, 5.735 s to compute."""
    kept = passport_70b().footprint.bytes_for(16_384)
    resume = Resume(16_384, 0, kept, 2 * 70e9 * 16_384 / 400e12, 0.0)
    found = break_even(resume, LINKS["pcie5"], 1, Prices(1.0, 0.0), None)

    assert kept == 5 * GIB
    assert resume.recompute_s == pytest.approx(5.735, abs=1e-3)
    assert found.round_trip_s == pytest.approx(0.215, abs=5e-4)
    assert found.break_even_s == found.round_trip_s
    assert found.stored_break_even_s == found.reload_s
    assert found.speedup == pytest.approx(53.6, abs=0.25)
