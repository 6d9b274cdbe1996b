"""Ten thousand random orders of signals and turns: no block is lost or doubled, none is kept.

What: each order is a handful of turns, aborts and signals (early, late, doubled, foreign, unknown)
on an engine that goes on living; after each its pool must be whole again.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from kit import Agent, Rig, prompt
from kit.clean import engine_leaks, find_leaks
from kit.control import tell

from agentkv.signals import Event

RigFactory = Callable[..., Rig]
ORDERS = 10_000
PARTS = 10  # each on an engine of its own
EVENTS = ("pause", "resume", "resume", "heartbeat", "end")


class _Player:
    """Plays one random order after the other on a rig with three agents."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self._rng = random.Random(seed)
        self._agents: list[Agent] = []
        self._names = 0
        self._last: Event | None = None

    def play(self) -> None:
        rng = self._rng
        if len(self._agents) < 3 or rng.random() < 0.1:
            self._names += 1
            agent = Agent(self.rig, f"s{self._names}", self._names, rng.choice([1, 3, 6]))
            self._agents = [*self._agents[-2:], agent]
        for _ in range(rng.randrange(2, 7)):
            rng.choice([self._turn, self._signal, self._signal, self._step, self._abort])()
        self.rig.settle()

    def _turn(self) -> None:
        agent = self._rng.choice(self._agents)
        if len(agent.context) > 150:
            agent.context = agent.context[: self._rng.choice([16, 80])]
        request_id = f"r{len(self.rig.results)}"
        tokens = [*agent.context, *prompt(len(self.rig.results), self._rng.randrange(1, 20))]
        tag = {"expected_wait_s": self._rng.choice([0.1, 50.0]), "tool": "bash"}
        self.rig.add(request_id, tokens, max_tokens=2, session=agent.session, tag=tag)
        agent.context = tokens

    def _signal(self) -> None:
        rng = self._rng
        if self._last is not None and rng.random() < 0.2:
            tell(self.rig, self._last)  # doubled
            return
        name = rng.choice([*(agent.name for agent in self._agents), "s1", "nobody"])
        fields: dict[str, Any] = {"event": rng.choice(EVENTS), "session_id": name}
        if rng.random() < 0.5:
            fields["seq"] = rng.randrange(20)
        if rng.random() < 0.5:
            fields["expected_wait_s"] = rng.choice([0.0, 0.5, 500.0])
        self._last = Event.model_validate(fields)
        tell(self.rig, self._last, scope=rng.choice(["", "", "", "other"]))

    def _step(self) -> None:
        self.rig.script.load_delay_steps = self._rng.choice([0, 0, 2])
        self.rig.clock.advance(self._rng.choice([0.0, 0.05, 60.0]))
        self.rig.step(self._rng.randrange(1, 4))

    def _abort(self) -> None:
        open_ids = [i for i, result in self.rig.results.items() if not result.is_finished]
        if open_ids:
            self.rig.abort(self._rng.choice(open_ids))


@pytest.mark.parametrize("part", range(PARTS))
def test_no_block_is_lost_or_doubled_in_any_order(make_rig: RigFactory, part: int) -> None:
    rig = make_rig(
        pool_blocks=24,
        dram_blocks=60,
        max_num_seqs=2,
        is_async=part % 2 == 1,
        is_hybrid=part > 6,
        policy="always_swap",
        extra={"min_load_tokens": 1},  # the rig's clock would say that computing is quicker
    )
    player = _Player(rig, seed=part)
    for number in range(ORDERS // PARTS):
        player.play()
        assert list(engine_leaks(rig)) == [], f"after order {number}"
        for request_id, result in list(rig.results.items()):
            if result.finish_reason != "abort":
                rig.check_answer(request_id)
            if number % 100:
                del rig.results[request_id]
    find_leaks(rig)
    assert rig.counter("agentkv:prefetch_outcomes") > 0, "prefetches took part"
    assert rig.counter("agentkv:faults") == 0
