"""What a plan says beyond the worked numbers, and what it refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from passport.configs import DEEPSEEK_V3, GEMMA3, QWEN3_NEXT
from plan.builders import GB, LONG, demand, node, passport_70b, plan

from agentkv.errors import ConfigError
from agentkv.passport.passport import Passport, Serving, make_passport
from agentkv.plan.capacity import count_sessions
from agentkv.plan.links import LINKS, find_link
from agentkv.plan.planning import to_json
from agentkv.plan.quantities import constant, parse_quantity, weighted
from agentkv.plan.tiers import MONTH_S, Tier, TierValue, parse_tiers, value_of
from agentkv.plan.waits import Resume, price_resume


def passport(data: dict[str, Any], tensor_parallel: int = 1) -> Passport:
    return make_passport({**data, **LONG}, "model", Serving(tensor_parallel=tensor_parallel))


def test_branches_share_what_they_fork_from() -> None:
    one = plan(30_000, output_tokens=1000).capacity
    four = plan(30_000, output_tokens=1000, forks=4).capacity
    per_token = passport_70b().bytes_per_token

    assert four.private_bytes - one.private_bytes == 3 * 1000 * per_token


def test_replicas_have_weights_of_their_own() -> None:
    eight = plan(8192, passport=passport_70b(8)).capacity
    pairs = plan(
        8192, passport=passport_70b(4), node=node(tensor_parallel=4, runtime_bytes=2.5 * GB)
    ).capacity

    lost = 141.2 * GB / (8192 * 327_680)
    assert eight.sessions - pairs.sessions == pytest.approx(lost, abs=2)


def test_pipeline_stages_divide_weights_and_layers() -> None:
    staged = node(tensor_parallel=4, pipeline_parallel=2)
    answer = plan(32_768, passport=passport_70b(4), node=staged)

    assert answer.capacity.sessions == plan(32_768).capacity.sessions


def test_latents_are_kept_by_every_device() -> None:
    """MLA is not split: eight devices hold eight copies of a session."""
    pool = node(weights_bytes=80 * GB)
    split = count_sessions(pool, passport(DEEPSEEK_V3, 8).device_footprint, demand(32_768), 16)

    assert split.private_bytes == 8 * 32_768 * 70_272


def test_windows_and_states_count_with_what_they_keep() -> None:
    pool = node(num_devices=1, tensor_parallel=1, weights_bytes=2 * GB)
    windows = count_sessions(pool, passport(GEMMA3).device_footprint, demand(100_000), 16)
    states = count_sessions(pool, passport(QWEN3_NEXT).device_footprint, demand(100_000), 16)

    assert windows.private_bytes == 512 * 22 * 1024 + 100_000 * 4 * 1024
    assert states.private_bytes == passport(QWEN3_NEXT).fixed_bytes + 100_000 * 24 * 1024


def test_what_surely_fits_does_in_19_of_20_draws() -> None:
    contexts = weighted([4096, 16_384, 65_536], [6, 3, 1])
    answer = plan(contexts)
    numbers = random.Random(0)
    size, room = 327_680, answer.capacity.usable_bytes

    def fits(count: int) -> float:
        draws = range(2000)
        shares = list(contexts.shares)
        return sum(
            sum(numbers.choices(list(contexts.values), shares, k=count)) * size <= room
            for _ in draws
        ) / len(draws)

    assert answer.capacity.sure_sessions < answer.capacity.sessions
    assert fits(answer.capacity.sure_sessions) == pytest.approx(0.95, abs=0.025)
    assert fits(answer.capacity.sessions) < 0.7


def test_what_all_share_is_neither_loaded_nor_computed_again() -> None:
    whole = price_resume(passport_70b(), node(), 32_768, 0.35)
    rest = price_resume(passport_70b(), node(), 32_768, 0.35, 24_576)

    assert rest.kv_bytes == whole.kv_bytes / 4
    assert whole.recompute_s / 4 < rest.recompute_s < whole.recompute_s / 2


def test_links_are_sorted_and_pauses_counted() -> None:
    waits = parse_quantity("--wait", "0:0.001,1:1000", least=0)
    rows = plan(32_768, waits=waits).links
    rates = [row.bytes_per_s for row in rows]

    assert {row.link.name for row in rows} == set(LINKS)
    assert rates == sorted(rates)
    for row in rows:
        assert row.stored_break_even_s == pytest.approx(row.break_even_s / 2)
        assert row.pauses == waits.share_above(row.stored_break_even_s)
        assert row.pauses is not None and row.held is not None
        assert row.held > row.pauses


def test_more_memory_holds_more_and_the_envelope_says_how_many() -> None:
    answer = plan(32_768, node=node(hbm_bytes=80 * GB))
    sessions = {row.accelerator: dict(row.sessions)[32_768] for row in answer.envelope}

    assert sessions["h100"] == answer.capacity.sessions
    assert sessions["h100"] < sessions["h200"] < sessions["gb200"] < sessions["b200"]


def test_an_accelerator_without_room_has_no_sessions() -> None:
    big = node(num_devices=2, tensor_parallel=2, hbm_bytes=192 * GB, weights_bytes=200 * GB)
    answer = plan(32_768, passport=passport_70b(2), node=big)
    rows = {row.accelerator: row for row in answer.envelope}

    assert rows["h100"].sessions == ()
    assert dict(rows["b200"].sessions)[32_768] == answer.capacity.sessions


RESUME = Resume(10_000, 0, 2 * GB, 3.0, 3.0)


def tier(**changes: Any) -> Tier:
    fields: dict[str, Any] = {"name": "dram", "size_bytes": 100 * GB, "link": LINKS["pcie5"]}
    return Tier(**(fields | changes))


def value(of: Tier, wait_s: float = 100.0, gpu_price: float | None = 2.0) -> TierValue:
    return value_of(of, RESUME, node(), constant(wait_s), gpu_price)


def test_a_tier_pays_up_to_what_it_saves() -> None:
    """8 GPUs for 3 s are 24 GPU-seconds a turn; a turn holds 2 GB for 100 s."""
    found = value(tier())
    turns_of_a_gb_month = MONTH_S / 100 / 2

    assert found.saved_gpu_s == 24
    assert found.recompute_cost == pytest.approx(24 * 2 / 3600)
    assert found.most_price == pytest.approx(24 * 2 / 3600 * turns_of_a_gb_month)
    assert found.sessions == 50


def test_at_the_highest_price_a_turn_costs_what_computing_it_does() -> None:
    most = value(tier()).most_price
    found = value(tier(price=most))

    assert found.turn_cost == pytest.approx(found.recompute_cost)
    assert value(tier(price=0.99 * most)).verdict == "yes"
    assert value(tier(price=1.01 * most)).verdict.startswith("no: pays below")


def test_a_link_that_is_too_slow_for_its_tier_makes_the_rest_useless() -> None:
    slow = tier(name="ssd", size_bytes=100_000 * GB, link=LINKS["nvme4"])
    found = value(slow)

    assert found.link_share == pytest.approx(100_000 / 100 / 7)
    assert found.sessions == 7 * 100 // 2
    assert found.most_price == pytest.approx(value(tier()).most_price / found.link_share)


def test_without_prices_the_price_that_matters_is_named() -> None:
    most = value(tier(), gpu_price=None).most_price

    assert value(tier(), gpu_price=None).verdict == f"up to {most:,.3g}/GB-month"
    priced = value(tier(price=2 * most), gpu_price=None)
    assert priced.verdict == "if a GPU-hour costs over 2"


def test_a_tier_that_is_slower_than_computing_is_not_worth_a_penny() -> None:
    found = value(tier(link=find_link("--link", "slow:0.5")))

    assert found.verdict == "no: computing is faster"
    assert found.most_price == 0


def test_pauses_that_are_too_short_want_no_tier() -> None:
    assert value(tier(), wait_s=1e-4).verdict == "no: no pause is long enough"


def test_tiers_are_read() -> None:
    dram, ssd, redis = parse_tiers(["dram:2TB", "ssd:30TB::0.1", "redis:1TiB:25gbe"], "pcie5")

    assert dram == Tier("dram", 2e12, LINKS["pcie5"])
    assert ssd == Tier("ssd", 30e12, LINKS["nvme4"], 0.1)
    assert redis == Tier("redis", 2**40, LINKS["25gbe"])
    assert parse_tiers(["ssd:1TB:6"], "pcie5")[0].link.bytes_per_s == 6e9


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["tape:2TB"], "one of dram, ssd"),
        (["dram"], "give NAME:SIZE"),
        (["dram:2"], "--tier"),
        (["dram:2TB:pcie9"], "nearest: pcie"),
        (["dram:2TB:pcie5:cheap"], "price"),
        (["dram:2TB:pcie5:-1"], "price"),
        (["dram:2TB:pcie5:1:1"], "give NAME:SIZE"),
        (["dram:2TB", "dram:1TB"], "given twice"),
    ],
)
def test_wrong_tiers_are_refused(specs: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_tiers(specs, "pcie5")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_devices": 12}, "--count 12: .* give 8"),
        ({"runtime_bytes": 90 * GB}, "--runtime"),
        ({"weights_bytes": 1300 * GB}, "--tp 8: .* give --tp x --pp of 16"),
    ],
)
def test_nodes_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(32_768, node=node(**changes))


@pytest.mark.parametrize(
    ("context", "changes", "words"),
    [
        (1000, {"shared_tokens": 2000}, "--shared 2000: .* at most 1000"),
        (1000, {"shared_tokens": 1000}, "nothing of its own"),
        (3e6, {}, "give at most 2000000"),
        (1_999_999, {"output_tokens": 2}, "give at most 1999998"),
    ],
)
def test_demands_that_contradict_are_refused(
    context: float, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(context, **changes)


def test_the_json_is_finite_and_complete() -> None:
    waits = parse_quantity("--wait", "0.5:1,0.99:100", least=0)
    found = to_json(plan(weighted([1000, 9000], [1, 1]), waits=waits, tiers=(tier(),)))

    assert found["sessions"] > 0
    assert found["tier_sessions"] == found["tiers"][0]["sessions"]
    assert {row["link"] for row in found["break_even"]} == set(LINKS)
    numbers = [v for row in found["break_even"] for v in row.values() if isinstance(v, float)]
    assert np.all(np.isfinite(numbers))


def test_free_gpu_time_makes_no_tier_worth_it() -> None:
    assert value(replace(tier(), price=1.0), gpu_price=0.0).verdict.startswith("no: pays below 0")
