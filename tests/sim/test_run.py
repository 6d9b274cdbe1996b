"""Whole runs: what must hold of every policy, and what knowledge must be worth."""

from dataclasses import replace

import pytest
from sim.builders import made_up_trace, small_plan, small_profile, small_run

from agentkv.sim.contenders import BLIND, OPEN, names
from agentkv.sim.exclusive import Exclusive
from agentkv.sim.run import run_once
from agentkv.sim.sweep import prepare, simulate

EVERY = [name for name in names() if not name.endswith((BLIND, OPEN))]


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("dram", [0.0, 1.0])
def test_every_turn_is_served_and_no_block_is_lost(policy: str, dram: float) -> None:
    (spec,), prepared = small_run(policy, dram=(dram,), duration_s=80.0, warmup_s=20.0)
    row = run_once(spec, prepared.sessions).row  # checks the pool itself
    assert row["turns"] > 30
    assert 0 <= row["recomputed_tokens"] <= row["reusable_tokens"]
    assert row["unfinished"] <= spec.node.num_slots
    hits = row["gpu_hit_tokens"] + row["dram_hit_tokens"]
    assert hits + row["recomputed_tokens"] >= row["reusable_tokens"]


@pytest.mark.parametrize("policy", ["lru", "break_even", "oracle"])
def test_the_same_seed_gives_the_same_row_and_another_one_another(policy: str) -> None:
    (spec,), prepared = small_run(policy, duration_s=80.0, warmup_s=20.0)
    first, again, other = (
        run_once(each, prepared.sessions).row for each in (spec, spec, replace(spec, seed=1))
    )
    assert first == again
    assert first["reusable_tokens"] != other["reusable_tokens"]


def test_with_room_for_all_every_policy_does_nothing() -> None:
    """Native LRU may still lose live KV there, behind that of sessions that have ended."""
    policies = [name for name in EVERY if name != "lru"]
    plan = small_plan(
        *policies, oversubscription=(0.5,), dram=(0.0,), duration_s=80.0, warmup_s=20.0
    )
    rows = [result.row for result in simulate(prepare(made_up_trace(), plan), plan)]
    assert {row["recomputed_tokens"] for row in rows} == {0}
    assert {row["reload_s"] for row in rows} == {0}
    assert len({(row["turns"], row["mean_resume_ttft_s"]) for row in rows}) == 1


def _share(policy: str, **changes: object) -> float:
    plan = small_plan(policy, duration_s=120.0, **changes)
    rows = [result.row for result in simulate(prepare(made_up_trace(), plan), plan)]
    recomputed = sum(row["recomputed_tokens"] for row in rows)
    return recomputed / sum(row["reusable_tokens"] for row in rows)


@pytest.mark.parametrize("dram", [0.0, 1.0])
def test_who_is_told_the_waits_recomputes_least(dram: float) -> None:
    native = _share("lru", dram=(dram,))
    assert native > 0.01
    assert _share("oracle", dram=(dram,)) < native


def test_knowing_the_ends_saves_recomputation() -> None:
    options = small_plan().options
    known = _share("managed_lru")
    unknown = _share("managed_lru", options=replace(options, has_ends=False))
    assert known < unknown


def test_a_tier_below_dram_saves_recomputation() -> None:
    from agentkv.sim.run import TierSpec

    ssd = (TierSpec("ssd", 4.0, 5e8, 0.001),)
    assert _share("break_even", dram=(0.5,), tiers=ssd) < _share("break_even", dram=(0.5,))


def test_a_resume_event_hides_reloads() -> None:
    plan = small_plan("break_even", oversubscription=(3.0,), dram=(4.0,), duration_s=110.0)
    told = replace(plan, options=replace(plan.options, resume_s=2.0))
    hidden = []
    for each in (plan, told):
        row = simulate(prepare(made_up_trace(), each), each)[0].row
        hidden.append(row["hidden_reload_s"] / (row["hidden_reload_s"] + row["reload_s"]))
    assert hidden[1] > hidden[0]
    assert hidden[1] > 0.5


def test_two_processes_give_what_one_gives() -> None:
    plan = small_plan("lru", "break_even", duration_s=40.0, warmup_s=10.0, num_seeds=2)
    prepared = prepare(made_up_trace(), plan)
    one = [result.row for result in simulate(prepared, plan)]
    two = [result.row for result in simulate(prepared, plan, num_jobs=2)]
    assert one == two


def _turns(policy: str, **changes: object) -> dict[str, float]:
    profile = small_profile(prefill_tokens_per_s=1500.0)
    plan = small_plan(policy, profile=profile, dram=(0.5,), duration_s=2400.0, **changes)
    plan = replace(plan, warmup_s=900.0, options=replace(plan.options, load="recorded"))
    return simulate(prepare(made_up_trace(), plan), plan)[0].row


def test_admission_ends_a_thrash_and_more_turns_are_served() -> None:
    changes = {"oversubscription": (5.0,)}
    everybody = _turns("managed_lru_noadmission", **changes)
    limited = _turns("managed_lru", **changes)
    assert everybody["recompute_step_share"] > 0.6, "no thrash, nothing to end"
    assert everybody.get("admission_delayed") == 0
    assert limited["admission_delayed"] > 0
    assert limited["turns"] > 1.3 * everybody["turns"]
    assert limited["recompute_step_share"] < everybody["recompute_step_share"]


def test_admission_holds_nobody_back_where_little_is_computed_again() -> None:
    rows = [
        _turns(policy, oversubscription=(1.0,))
        for policy in ("managed_lru", "managed_lru_noadmission")
    ]
    assert rows[0]["admission_delayed"] == 0
    assert rows[0]["turns"] == rows[1]["turns"]


@pytest.mark.parametrize("policy", ["lru", "expected_cost"])
def test_steps_put_together_ahead_serve_every_turn_a_bit_later(policy: str) -> None:
    rows = []
    for is_async in (False, True):
        plan = small_plan(
            policy, profile=small_profile(is_async=is_async), duration_s=120.0, dram=(4.0,)
        )
        (result,) = simulate(prepare(made_up_trace(), plan), plan)
        rows.append(result.row)
    sync, ahead = rows
    assert ahead["turns"] > 30 and ahead["unfinished"] <= ahead["slots"]
    assert ahead["p50_resume_ttft_s"] > sync["p50_resume_ttft_s"]


def test_what_only_the_pool_has_is_copied_out_before_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = small_plan("expected_cost", duration_s=200.0)
    prepared = prepare(made_up_trace(), plan)
    (with_copies,) = simulate(prepared, plan)
    assert with_copies.row["copied_out_blocks"] > 0
    monkeypatch.setattr(Exclusive, "_copy_out", lambda self, session, num_blocks: None)
    (without,) = simulate(prepared, plan)
    assert without.row["copied_out_blocks"] == 0
    assert without.row["recomputed_share"] > with_copies.row["recomputed_share"]
