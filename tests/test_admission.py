"""Admission by program: off while little is computed again; bounded, in order of beginning."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentkv import metrics
from agentkv.admission import PACE, ProgramAdmission
from agentkv.clock import ManualClock
from agentkv.config_admission import AdmissionConfig
from agentkv.metrics import Recorder
from agentkv.sessions import SessionKey

CAPACITY_TOKENS = 1200
TURN_TOKENS = 300
RECOMPUTE_S = 2.0


@dataclass
class _Engine:
    """Programs by number; every turn has the same size, and no two share anything."""

    config: AdmissionConfig = field(default_factory=AdmissionConfig)
    clock: ManualClock = field(default_factory=ManualClock)
    recorder: Recorder = field(default_factory=Recorder)
    ended: set[SessionKey] = field(default_factory=set)
    num_turns: int = 0

    def __post_init__(self) -> None:
        self.admission = ProgramAdmission(
            self.config,
            self.clock,
            self.recorder,
            capacity_tokens=CAPACITY_TOKENS,
            recompute_s=lambda tokens: RECOMPUTE_S,
            live_tokens=lambda: 1e9,
            is_live=lambda key: key not in self.ended,
        )

    def arrive(self, program: int) -> str:
        self.num_turns += 1
        request_id = f"{program}/{self.num_turns}"
        key = SessionKey("", str(program))
        self.admission.arrived(request_id, key, prompt_tokens=TURN_TOKENS)
        self.admission.review(is_idle=False)
        return request_id

    def turn(self, program: int) -> None:
        request_id = self.arrive(program)
        self.admission.started(request_id)
        self.admission.finished(request_id, context_tokens=TURN_TOKENS)

    def pass_s(self, seconds: int, *, load: float, is_idle: bool = False) -> list[str]:
        released: list[str] = []
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.admission.recomputed(load)
            released += self.admission.review(is_idle=is_idle).released
        return released

    def thrash(self, num_programs: int) -> list[str]:
        """All programs send turns again and again, and everything is computed again."""
        for program in [*range(num_programs), *range(num_programs)]:
            self.turn(program)
        self.pass_s(400, load=0.95)
        return [self.arrive(program) for program in range(num_programs)]

    def held(self, request_ids: list[str]) -> list[int]:
        return [int(i.split("/")[0]) for i in request_ids if self.admission.is_held(i)]


def test_while_little_is_computed_again_nobody_waits_however_much_is_live() -> None:
    engine = _Engine()
    for round_ in range(20):
        ids = [engine.arrive(program) for program in range(50)]
        engine.pass_s(5, load=0.4 * (round_ % 2))
        assert engine.held(ids) == []
        for request_id in ids:
            engine.admission.started(request_id)
            engine.admission.finished(request_id, context_tokens=TURN_TOKENS)
    assert not engine.recorder.counters and not engine.recorder.samples


def test_a_minute_of_recomputing_holds_nobody_back() -> None:
    engine = _Engine()
    ids = [engine.arrive(program) for program in range(50)]
    engine.pass_s(60, load=1.0)
    engine.pass_s(60, load=0.3)
    engine.pass_s(60, load=1.0)
    assert engine.held(ids) == []


def test_while_much_is_computed_again_those_that_began_first_go_on() -> None:
    engine = _Engine()
    ids = engine.thrash(8)
    held = engine.held(ids)
    assert held and held == list(range(8 - len(held), 8))
    assert engine.recorder.counters[metrics.ADMISSION_DELAYED, ()] == len(held)
    new = engine.arrive(99)
    assert engine.admission.is_held(new), "a new program comes after all that are there"


def test_what_fits_is_never_held_back() -> None:
    engine = _Engine()
    assert engine.held(engine.thrash(2)) == []


def test_who_runs_is_not_held_back_nor_is_another_turn_of_its_program() -> None:
    engine = _Engine()
    ids = [engine.arrive(program) for program in range(8)]
    for request_id in ids:
        engine.admission.started(request_id)
    engine.pass_s(400, load=0.95)
    again = engine.arrive(7)
    assert not any(engine.admission.is_held(i) for i in [*ids, again])


def test_a_turn_that_waits_already_is_held_back_too() -> None:
    engine = _Engine()
    ids = [engine.arrive(program) for program in range(8)]
    engine.pass_s(400, load=0.95)
    assert engine.held(ids)


def test_the_end_of_a_program_lets_the_next_one_in() -> None:
    engine = _Engine()
    ids = engine.thrash(8)
    first = engine.held(ids)[0]
    for request_id in ids:
        if not engine.admission.is_held(request_id):
            engine.admission.started(request_id)
            engine.admission.finished(request_id, context_tokens=TURN_TOKENS)
            engine.ended.add(SessionKey("", request_id.split("/")[0]))
    released = engine.pass_s(2, load=0.2)
    assert released[0] == ids[first]


def test_when_the_load_falls_all_come_in_and_admission_is_off() -> None:
    engine = _Engine()
    ids = engine.thrash(8)
    assert engine.held(ids)
    engine.pass_s(3000, load=0.0)
    assert not engine.held(ids)
    assert not engine.admission.is_limiting


def test_nobody_waits_longer_than_the_bound_while_the_load_stays_high() -> None:
    config = AdmissionConfig(max_wait_s=50.0)
    engine = _Engine(config)
    ids = engine.thrash(12)
    num_held = len(engine.held(ids))
    for request_id in ids[:-num_held]:
        engine.admission.started(request_id)
    pace_s = RECOMPUTE_S / (PACE * config.max_recompute_share)
    released = engine.pass_s(int(50 + num_held * (pace_s + 1)) + 2, load=0.9)
    assert sorted(released) == sorted(ids[-num_held:])
    waits_s = engine.recorder.samples[metrics.ADMISSION_WAIT, ()]
    assert min(waits_s) >= 50.0, "nothing else lets them go"


def test_an_idle_engine_lets_the_one_that_waits_longest_go_at_once() -> None:
    engine = _Engine()
    ids = engine.thrash(8)
    held = engine.held(ids)
    assert engine.admission.review(is_idle=True).released == [ids[held[0]]]
    engine.pass_s(5, load=0.9)
    assert not engine.admission.is_held(ids[held[0]]), "it is not held back again"


def test_a_turn_that_is_aborted_while_held_back_leaves_nothing() -> None:
    engine = _Engine()
    ids = engine.thrash(8)
    for request_id in ids:
        engine.admission.finished(request_id, context_tokens=TURN_TOKENS)
    assert len(engine.admission) == 0 and not engine.admission._turns


@pytest.mark.parametrize("num_turns", [1, 2])
def test_a_request_that_may_be_all_of_its_program_is_forgotten_soon(num_turns: int) -> None:
    engine = _Engine()
    for program in range(100):
        for _ in range(num_turns):
            engine.turn(program)
    engine.pass_s(130, load=0.0)
    assert len(engine.admission._programs) == (0 if num_turns == 1 else 100)
    engine.pass_s(1300, load=0.0)
    assert not engine.admission._programs


def test_of_many_programs_those_that_are_over_longest_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentkv.admission._MOST_CHECKED", 1)
    engine = _Engine()
    for program in range(200):
        engine.turn(program)
    engine.pass_s(250, load=0.0)
    left = [int(key.name) for key in engine.admission._programs]
    assert 0 < len(left) < 100
    assert left == list(range(200 - len(left), 200))


def test_let_all_go_ends_the_limit() -> None:
    engine = _Engine()
    ids = engine.thrash(8)
    assert engine.held(ids)
    engine.admission.let_all_go()
    engine.admission.review(is_idle=False)
    assert engine.held(ids) == [] and not engine.admission.is_limiting


class _Thorough(ProgramAdmission):
    """Walks over all programs whenever something changes."""

    @property
    def _are_all_in(self) -> bool:
        return False

    @_are_all_in.setter
    def _are_all_in(self, value: bool) -> None:
        pass


@pytest.mark.parametrize("seed", range(8))
def test_a_walk_that_is_spared_while_nothing_limits_changes_nothing(seed: int) -> None:
    engine, other = _Engine(), _Engine()
    other.admission.__class__ = _Thorough
    rng = random.Random(seed)
    num_held = 0
    for number in range(400):
        load = 1.0 if number // 80 % 2 == 0 else 0.0
        program, length_s = rng.randrange(12), rng.choice((0, 0, 1, 30))
        seen = []
        for each in (engine, other):
            request_id = each.arrive(program)
            if not each.admission.is_held(request_id) and program % 3:
                each.admission.started(request_id)
                each.admission.finished(request_id, context_tokens=TURN_TOKENS)
            released = each.pass_s(length_s, load=load)
            seen.append((released, list(each.admission._held), each.admission.limit_tokens))
        assert seen[0] == seen[1]
        num_held = max(num_held, len(engine.admission))
    assert num_held > 0


def test_while_nothing_limits_an_arrival_costs_the_same_however_many_programs_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = _Engine()
    for program in range(200):
        engine.turn(program)
    counted: list[object] = []
    real = ProgramAdmission._is_counted

    def count(self: ProgramAdmission, *args: Any) -> bool:
        counted.append(args)
        return real(self, *args)

    monkeypatch.setattr(ProgramAdmission, "_is_counted", count)
    for program in range(180, 220):
        engine.turn(program)
    assert counted == []
