"""The closed loop: agents that send turns, wait for their tools, and begin the next session.

What: seeds the node with the turns that ended just before the start, then plays every slot.
Why seeded: a cold node would begin with an hour of prefills that no running one ever sees.
Where: between `workload` and `engine`.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentkv.sim.engine import Engine
from agentkv.sim.keeper import Keeper
from agentkv.sim.machine import Machine, Request
from agentkv.sim.workload import Options, SessionRun, Slot


class Agents:
    """All slots of one run. `engine` must be set before `seed`."""

    def __init__(self, machine: Machine, keeper: Keeper, options: Options) -> None:
        self.engine: Engine
        self.num_started = 0
        self._machine = machine
        self._keeper = keeper
        self._options = options
        self._slots: dict[int, Slot] = {}
        self._numbers: dict[int, int] = {}

    def seed(self, slots: Iterable[Slot]) -> None:
        """Each slot's last turn, in the order in which they ended; the clock ends at 0."""
        begun: list[tuple[float, float, Slot]] = []
        for slot in slots:
            self._slots[slot.number] = slot
            left_s = slot.begin_midway()
            wait_s = slot.wait_s(slot.run.next_turn) if not slot.run.is_last else left_s
            begun.append((max(0.0, wait_s - left_s), left_s, slot))
        clock = self._machine.clock
        for age_s, left_s, slot in sorted(begun, key=lambda each: (-each[0], each[2].number)):
            clock.advance(max(0.0, -age_s - clock.monotonic_s()))
            request = self._request(slot, is_resume=False)
            self.engine.seed(request, slot.wait_s(request.number))
            slot.run.next_turn += 1
            self._plan_next(slot, request.run, at_s=left_s)
        clock.advance(max(0.0, -clock.monotonic_s()))

    def finished(self, request: Request) -> None:
        """The turn is answered: its tool runs, or the session is over."""
        slot = self._slots[request.slot]
        slot.run.next_turn += 1
        now_s = self._machine.now_s
        if slot.run.is_over:
            gap_s = slot.begin_next(now_s)
            self._plan_next(slot, slot.run, at_s=now_s + gap_s)
        else:
            self._plan_next(slot, slot.run, at_s=now_s + slot.wait_s(request.number))

    def _plan_next(self, slot: Slot, run: SessionRun, *, at_s: float) -> None:
        if run.is_over:  # Seeded with a session of one turn.
            at_s = max(0.0, at_s) + slot.begin_next(0.0)
        is_resume = slot.run.next_turn > 0
        lead_s = self._options.resume_s
        if is_resume and lead_s > 0:
            name = slot.run.name
            early_s = max(self._machine.now_s, at_s - lead_s)
            self._machine.events.push(early_s, lambda: self._keeper.tool_done(name))

        def arrive() -> None:
            # An event may come late, after the step that ran meanwhile.
            request = self._request(slot, is_resume=is_resume)
            request.arrived_s = at_s
            self.engine.arrive(request, slot.wait_s(request.number))

        self._machine.events.push(at_s, arrive)

    def _request(self, slot: Slot, *, is_resume: bool) -> Request:
        run = slot.run
        number = run.next_turn
        self.num_started += 1
        return Request(
            request_id=f"{run.name}/{number}",
            slot=slot.number,
            run=run,
            number=number,
            planned=run.plan.turns[number],
            chain=run.chain(number),
            arrived_s=self._machine.now_s,
            is_last=run.is_last,
            is_resume=is_resume,
            stretch=slot.stretch,
            wrong_by=slot.wrong_by() if self._options.wrong_tags is not None else 1.0,
        )
