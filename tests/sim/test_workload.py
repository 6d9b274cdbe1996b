"""Slots, chains, load and profiles."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sim.builders import BLOCK_TOKENS, made_up_trace, small_plan, small_profile

from agentkv.errors import ConfigError
from agentkv.sim.profiles import PROFILES, find_profile
from agentkv.sim.sweep import prepare
from agentkv.sim.trace import TraceSession, TraceTurn
from agentkv.sim.workload import (
    Hashes,
    Options,
    SessionRun,
    make_slots,
    measure,
    plan_node,
    plan_sessions,
    turn_rate,
)


def test_a_chain_extends_what_its_turn_extends() -> None:
    turns = (
        TraceTurn(300, 20),
        TraceTurn(400, 20, 0, 320),
        TraceTurn(200, 20, 1, 100),  # history rewritten
    )
    (plan,) = plan_sessions([TraceSession("a", turns)], BLOCK_TOKENS, most_tokens=1e6)
    run = SessionRun("a", plan, Hashes(), 0)
    first, second, third = (run.chain(number) for number in (0, 1, 2))
    assert len(first) == 319 // BLOCK_TOKENS
    assert second[: len(first)] == first
    assert third[0] == first[0]
    assert third[1] != first[1]
    assert [turn.num_known for turn in plan.turns] == [0, 4, 1]


def test_sessions_share_the_prefix_of_their_source_and_nothing_else() -> None:
    sessions = [TraceSession(name, (TraceTurn(300, 20),), "src", 150) for name in "ab"]
    plans = plan_sessions(sessions, BLOCK_TOKENS, most_tokens=1e6)
    hashes = Hashes()
    one, other = (SessionRun(p.name, p, hashes, 0).chain(0) for p in plans)
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_stretched_waits_load_the_node_to_60_percent_of_its_peak() -> None:
    profile = PROFILES["70b"]
    totals = measure(made_up_trace(), profile)
    node = plan_node(totals, profile, Options(), oversubscription=4.0, dram_ratio=1.0)
    most = profile.pool_tokens / (totals.prompt_tokens + totals.output_tokens)
    rate = 0.6 * turn_rate(totals, profile, most)
    waiting = rate * (node.stretch * totals.wait_s + 5.0 / totals.turns)
    running = node.num_slots - waiting
    assert turn_rate(totals, profile, running) == pytest.approx(rate, rel=0.02)
    assert node.pressure_x == pytest.approx(2.0, rel=0.02)


def test_recorded_waits_are_not_stretched() -> None:
    profile = small_profile()
    totals = measure(made_up_trace(), profile)
    options = Options(load="recorded")
    node = plan_node(totals, profile, options, oversubscription=4.0, dram_ratio=1.0)
    assert node.stretch == 1.0


def test_a_slot_plays_the_same_for_one_seed() -> None:
    plan = small_plan()
    prepared = prepare(made_up_trace(), plan)
    node = plan_node(
        prepared.totals, plan.profile, plan.options, oversubscription=2.0, dram_ratio=0.0
    )
    seen = []
    for seed in (0, 0, 1):
        slots = list(make_slots(prepared.sessions, plan.options, node, seed=seed))
        seen.append([(slot.begin_midway(), slot.run.plan.name) for slot in slots])
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def test_wrong_tags_change_no_session() -> None:
    plan = small_plan()
    prepared = prepare(made_up_trace(), plan)
    played = []
    for wrong_tags in (None, 10.0):
        options = replace(plan.options, wrong_tags=wrong_tags)
        node = plan_node(
            prepared.totals, plan.profile, options, oversubscription=2.0, dram_ratio=0.0
        )
        slot = next(make_slots(prepared.sessions, options, node, seed=0))
        slot.begin_midway()
        factors = {slot.wrong_by() for _ in range(20)}
        played.append((slot.begin_next(0.0), slot.run.plan.name))
        assert factors == ({1.0} if wrong_tags is None else {10.0, 0.1})
    assert played[0] == played[1]


def test_bursty_sessions_begin_on_the_minute() -> None:
    plan = small_plan()
    prepared = prepare(made_up_trace(), plan)
    options = replace(plan.options, is_bursty=True)
    node = plan_node(prepared.totals, plan.profile, options, oversubscription=2.0, dram_ratio=0.0)
    slot = next(make_slots(prepared.sessions, options, node, seed=0))
    assert (100.0 + slot.begin_next(100.0)) % 60 == pytest.approx(0.0, abs=1e-6)


def test_nothing_fits_is_said() -> None:
    with pytest.raises(ConfigError, match="--max-context"):
        prepare(made_up_trace(), small_plan(max_context=10))


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean break_even"):
        prepare(made_up_trace(), small_plan("brake_even"))


def test_a_measured_profile_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(small_profile().model_dump_json())
    assert find_profile(str(path)) == small_profile()
    fields = json.loads(small_profile().model_dump_json())
    for broken in (fields | {"pool_tokens": 0}, fields | {"pol_tokens": 5}, {}):
        path.write_text(json.dumps(broken))
        with pytest.raises(ConfigError, match=r"mine\.json"):
            find_profile(str(path))
    with pytest.raises(ConfigError, match="70b, 8b"):
        find_profile("80b")
