"""The controller: what is decided for a pause, who is given up, what a resumed turn teaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentkv import metrics
from agentkv.appraisal import Deps, Location
from agentkv.clock import ManualClock
from agentkv.config import parse_config
from agentkv.controller import Controller
from agentkv.cost_model import CostModel, LinkSpeed, PrefillCurve
from agentkv.events import EMPTY_TAG, TurnTag
from agentkv.geometry import KvFootprint, KvGroup
from agentkv.ledger import Ledger
from agentkv.metrics import Recorder
from agentkv.policy import POLICIES, Action
from agentkv.predict import HierarchicalWaitPredictor
from agentkv.sessions import BlockRef
from tests.test_prefix_tree import chain

BLOCK = 16
BYTES_PER_TOKEN = 1024.0
POOL_BLOCKS = 100


class World:
    """A controller whose engine is this test: a link of 1 GB/s, prefill at 10k tokens/s."""

    def __init__(self, *, missing: int = 0, **config: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.recorder = Recorder()
        self.ledger = Ledger(self.clock)
        parsed = parse_config(config)
        curve = PrefillCurve()
        for step in range(1, 200):
            tokens = 64 * (step % 8 + 1)
            curve.observe(new_tokens=tokens, pairs=tokens * tokens / 2, seconds=tokens / 10_000)
        self.missing = missing
        self.predictor = HierarchicalWaitPredictor()
        deps = Deps(
            costs=CostModel(curve, LinkSpeed(1e9), LinkSpeed(1e9)),
            footprint=KvFootprint((KvGroup(BYTES_PER_TOKEN),)),
            predictor=self.predictor,
            policy=POLICIES[parsed.policy](),
            ledger=self.ledger,
            recorder=self.recorder,
            clock=self.clock,
            locate=self._locate,
        )
        self.controller = Controller(parsed, deps, tokens_per_hash=BLOCK, pool_blocks=POOL_BLOCKS)
        self._num_requests = 0

    def _locate(self, refs: Sequence[BlockRef]) -> Location:
        return Location(min(self.missing, len(refs)))

    def turn(
        self,
        name: str | None,
        blocks: range,
        tag: TurnTag = EMPTY_TAG,
        *,
        gpu: int = 0,
        dram: int = 0,
    ) -> None:
        """One whole turn of a session whose context is these blocks, half a second long."""
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        hashes = chain(*blocks)
        self.controller.turn_arrived(
            request_id,
            name=name,
            scope="",
            hashes=hashes,
            prompt_tokens=len(hashes) * BLOCK,
            tag=tag,
        )
        self.controller.turn_scheduled(request_id, gpu_hit_tokens=gpu, dram_hit_tokens=dram)
        self.clock.advance(0.5)
        self.controller.turn_finished(request_id, hashes=hashes, num_tokens=len(hashes) * BLOCK + 1)

    def press(self, wanted: int = 10, worthless: int = 0) -> float:
        return self.controller.appraiser.observe_demand(
            wanted_blocks=wanted, worthless_blocks=worthless
        )

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.ledger.records() if record["kind"] == kind]

    def victims(self) -> list[tuple[str, Action]]:
        return [(victim.session.key.name, victim.action) for victim in self.controller.victims()]


def test_with_nobody_waiting_every_pause_is_held_and_costs_no_block_walk() -> None:
    world = World(missing=10**6)
    world.turn("a", range(20), TurnTag(tool="bash", command="pytest"))
    (record,) = world.records("pause")
    assert record["action"] == "hold" and "nobody waits" in record["reason"]
    assert record["tool"] == "bash" and record["kv_bytes"] == (20 * BLOCK + 1) * BYTES_PER_TOKEN


def test_pressure_is_the_share_only_live_kv_can_provide_and_fades() -> None:
    world = World()
    assert world.press(10, 4) == pytest.approx(0.6)
    world.clock.advance(1.0)
    assert world.press(0, 0) == pytest.approx(0.3)
    world.clock.advance(60.0)
    assert world.press(5, 5) == 0.0


def test_under_pressure_a_long_wait_is_swapped_with_its_reason() -> None:
    world = World()
    world.press()
    world.turn("a", range(20), TurnTag(tool="bash", command="pytest -q", expected_wait_s=60))
    (record,) = world.records("pause")
    assert record["action"] == "swap"
    assert "break-even" in record["reason"] and record["break_even_s"] > 0


def test_a_pause_whose_kv_dram_cannot_take_is_recomputed() -> None:
    world = World(missing=10**6)
    world.press()
    world.turn("a", range(20), TurnTag(expected_wait_s=60))
    assert world.records("pause")[0]["action"] == "recompute"


def test_a_held_pause_is_decided_again_when_somebody_needs_its_blocks() -> None:
    world = World()
    world.turn("a", range(20), TurnTag(expected_wait_s=60))
    world.clock.advance(5)
    world.press()
    assert world.victims() == [("a", Action.SWAP)]
    assert [record["action"] for record in world.records("redecide")] == ["swap"]
    assert world.victims() == []


SHORT, LATE, SOON = ("short", Action.RECOMPUTE), ("late", Action.SWAP), ("soon", Action.SWAP)


@pytest.mark.parametrize(
    "policy, order", [("break_even", [SHORT, LATE, SOON]), ("expected_cost", [LATE, SOON, SHORT])]
)
def test_the_latest_return_goes_first(policy: str, order: list[tuple[str, Action]]) -> None:
    """By `break_even` what would be recomputed goes before it; a short context, whose loss costs
    most for its size, goes last by worth."""
    world = World(policy=policy, min_load_tokens=64)
    world.press()
    world.turn("soon", range(0, 20), TurnTag(expected_wait_s=20))
    world.turn("late", range(100, 120), TurnTag(expected_wait_s=300))
    world.turn("short", range(200, 201), TurnTag(expected_wait_s=20))
    world.press()
    assert world.victims() == order


def test_a_decision_knows_the_running_turns_that_a_recompute_would_delay() -> None:
    world = World()
    hashes = chain(*range(500, 530))
    world.controller.turn_arrived(
        "running", name="other", scope="", hashes=hashes, prompt_tokens=30 * BLOCK, tag=EMPTY_TAG
    )
    world.press()
    world.turn("a", range(20))
    world.controller.turn_scheduled("running", gpu_hit_tokens=0, dram_hit_tokens=0)
    world.turn("b", range(100, 120))
    found = [record["running_bytes"] for record in world.records("pause")]
    assert found == [0, 30 * BLOCK * BYTES_PER_TOKEN]


def test_what_nobody_lacks_may_be_held_beyond_its_share() -> None:
    world = World(policy="always_hold", hold={"pool_fraction": 0.1})
    world.turn("a", range(20))
    assert world.records("pause")[0]["action"] == "hold"
    world.press()
    world.turn("b", range(100, 120))
    assert world.records("pause")[1]["action"] == "swap"


def test_the_predictor_hears_whose_wait_it_is_and_of_those_that_nobody_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(sessions={"abandon_after_s": 100})
    asked: list[Any] = []
    told: list[tuple[Any, ...]] = []
    predictor = world.controller._deps.predictor
    estimate = predictor.estimate
    monkeypatch.setattr(
        predictor, "estimate", lambda *a, **k: asked.append(k["session"]) or estimate(*a, **k)
    )
    monkeypatch.setattr(predictor, "observe", lambda *a, **k: told.append((a[2], k)))
    monkeypatch.setattr(predictor, "forget", lambda session: told.append((session,)))
    world.turn("a", range(20), TurnTag(tool="bash"))
    (session,) = world.controller.sessions
    assert asked == [session.key]
    world.clock.advance(101)
    world.controller.tidy()
    assert told == [
        (pytest.approx(101), {"session": session.key, "is_censored": True}),
        (session.key,),
    ]


def test_a_hold_that_must_yield_says_so() -> None:
    world = World(policy="always_hold")
    world.turn("a", range(20))
    world.press()
    assert world.victims() == [("a", Action.SWAP)]
    assert "nothing else is left" in world.records("redecide")[0]["reason"]


def test_only_blocks_no_other_live_session_uses_are_given_up() -> None:
    world = World()
    world.turn("a", range(10))
    world.turn("b", range(8))
    world.press()
    refs = {victim.session.key.name: victim.refs for victim in world.controller.victims()}
    assert [depth for depth, _ in refs["a"]] == [10, 9]
    assert refs["b"] == []


def test_a_resumed_turn_tells_where_its_kv_came_from_and_what_was_lost() -> None:
    world = World()
    world.turn("a", range(20), TurnTag(tool="bash"))
    world.clock.advance(7)
    world.turn("a", range(22), gpu=4 * BLOCK, dram=10 * BLOCK)
    (record,) = world.records("resume")
    assert record["wait_s"] == 7 and record["tier"] == "mixed" and record["turn"] == 1
    assert record["gpu_hit_tokens"] == 4 * BLOCK and record["dram_hit_tokens"] == 10 * BLOCK
    assert record["recomputed_tokens"] == 6 * BLOCK
    counters = world.recorder.take().counters
    assert counters[metrics.RESUME_TOKENS, ("recomputed",)] == 6 * BLOCK
    assert counters[metrics.RESUME_TOKENS, ("new",)] == 2 * BLOCK
    assert (
        sum(count for (metric, _), count in counters.items() if metric is metrics.RESUME_TOKENS)
        == 22 * BLOCK
    )


@pytest.mark.parametrize(
    ("gpu", "dram", "tier"), [(320, 0, "gpu"), (0, 320, "dram"), (0, 0, "none")]
)
def test_the_tier_of_a_resume(gpu: int, dram: int, tier: str) -> None:
    world = World()
    world.turn("a", range(20))
    world.turn("a", range(21), gpu=gpu, dram=dram)
    assert world.records("resume")[0]["tier"] == tier


def test_the_predictor_learns_from_observed_waits() -> None:
    world = World()
    for blocks in range(5, 60):
        world.turn("a", range(blocks), TurnTag(tool="oddtool"))
        world.clock.advance(123.0)
    assert world.records("pause")[0]["estimate_p50_s"] < 60
    assert 60 < world.records("pause")[-1]["estimate_p50_s"] < 250


def test_a_swap_that_returned_at_once_is_regretted_a_right_hold_is_not() -> None:
    world = World()
    world.press()
    world.turn("a", range(50), TurnTag(expected_wait_s=600))
    world.turn("a", range(51), gpu=0, dram=50 * BLOCK)
    assert world.records("resume")[0]["regret_s"] > 0
    calm = World()
    calm.turn("a", range(50))
    calm.turn("a", range(51), gpu=50 * BLOCK)
    assert calm.records("resume")[0]["regret_s"] == 0


def test_a_hold_ends_with_its_lease() -> None:
    world = World(hold={"lease_s": 30})
    world.turn("a", range(20))
    world.clock.advance(29)
    world.controller.tidy()
    assert world.records("redecide") == []
    world.clock.advance(2)
    world.controller.tidy()
    (record,) = world.records("redecide")
    assert record["action"] == "swap" and "lease of 30 s" in record["reason"]


def test_holds_never_claim_more_than_their_share_of_the_pool() -> None:
    world = World(policy="always_hold", hold={"pool_fraction": 0.5})
    world.press()
    for number in range(4):
        world.press()
        world.turn(f"s{number}", range(number * 100, number * 100 + 20))
    actions = [record["action"] for record in world.records("pause")]
    assert actions == ["hold", "hold", "swap", "swap"]


def test_an_abandoned_session_ends_and_its_blocks_have_lapsed() -> None:
    world = World(sessions={"abandon_after_s": 100})
    world.turn("a", range(5))
    world.clock.advance(101)
    world.controller.tidy()
    assert world.records("end")[0]["session_id"] == "a"
    assert len(world.controller.sessions.take_lapsed()) == 5
    assert world.victims() == []


def test_the_last_turn_ends_the_session_without_a_pause() -> None:
    world = World()
    world.turn("a", range(5), TurnTag(last_turn=True))
    assert world.records("pause") == [] and len(world.records("end")) == 1
    assert len(world.controller.sessions.take_dead()) == 5


def test_a_turn_preempted_and_scheduled_again_counts_its_resume_once() -> None:
    world = World()
    world.turn("a", range(5))
    controller = world.controller
    controller.turn_arrived(
        "x", name="a", scope="", hashes=chain(*range(6)), prompt_tokens=96, tag=EMPTY_TAG
    )
    controller.turn_scheduled("x", gpu_hit_tokens=80, dram_hit_tokens=0)
    controller.turn_preempted("x")
    controller.turn_scheduled("x", gpu_hit_tokens=0, dram_hit_tokens=80)
    assert len(world.records("resume")) == 1


def test_gauges_count_sessions_by_state() -> None:
    world = World()
    world.turn("a", range(5))
    world.turn("b", range(10, 15))
    world.controller.tidy()
    gauges = world.recorder.take().gauges
    assert gauges[metrics.SESSIONS, ("paused",)] == 2
    assert gauges[metrics.SESSIONS, ("running",)] == 0


def test_after_clearing_nothing_is_given_up() -> None:
    world = World()
    world.turn("a", range(5))
    world.controller.clear()
    world.press()
    assert world.victims() == []


def test_a_swapped_pause_of_which_dram_has_nothing_left_is_recomputed() -> None:
    world = World()
    world.press()
    world.turn("a", range(20), TurnTag(expected_wait_s=60))
    world.press()
    assert world.victims() == [("a", Action.SWAP)]
    evicted = chain(*range(20))
    world.missing = 19
    world.controller.note_evicted(evicted[1:])
    world.controller.settle_evicted()
    assert world.records("redecide") == [], "what is left can still be loaded"
    world.missing = 20
    world.controller.note_evicted(evicted[:1])
    world.controller.settle_evicted()
    (record,) = world.records("redecide")
    assert record["action"] == "recompute" and "DRAM needed the room" in record["reason"]
    world.controller.note_evicted(evicted)
    world.controller.settle_evicted()
    assert len(world.records("redecide")) == 1
    world.turn("a", range(21))
    assert world.records("resume")[0]["action"] == "recompute"


def test_what_dram_evicts_of_a_pause_that_still_has_its_blocks_changes_nothing() -> None:
    world = World(missing=10**6)
    world.turn("a", range(20))
    world.controller.note_evicted(chain(*range(20)))
    world.controller.settle_evicted()
    assert world.records("redecide") == []


@pytest.mark.parametrize("moment", ["tidy", "close"])
def test_a_wait_is_learnt_after_the_first_token_but_surely(moment: str) -> None:
    world = World()
    world.turn("a", range(4), TurnTag(tool="bash", command="pytest"))
    world.clock.advance(2.0)
    world.controller.turn_arrived(
        "next", name="a", scope="", hashes=chain(*range(4)), prompt_tokens=64, tag=EMPTY_TAG
    )
    world.controller.turn_scheduled("next", gpu_hit_tokens=64, dram_hit_tokens=0)
    world.controller.end_overdue()
    assert world.predictor.num_observed == 0, "a step's end comes before its tokens go out"
    getattr(world.controller, moment)()
    assert world.predictor.num_observed == 1
