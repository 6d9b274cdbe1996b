"""A closed loop that plays given sessions turn by turn, as `agentkv bench replay` does on servers.

What: agents begin one after the other, take the next session when theirs ends, and wait after each
answer for as long as the script says. Why: a simulator is worth what it gets right, and that shows
where the very same requests are played on a real engine. Chains are made from the prompts' tokens,
so what sessions share they share here too. Where: `agentkv.bench.simulated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from agentkv.sim.engine import Engine
from agentkv.sim.keeper import Keeper
from agentkv.sim.machine import Link, Machine, Request
from agentkv.sim.workload import Hashes, PlannedSession, SessionRun


@dataclass(frozen=True, slots=True)
class Script:
    """One session: its plan, and of each turn the hashes of its prompt's full blocks."""

    plan: PlannedSession
    prompts: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True, slots=True)
class ServedTurn:
    """One turn as it went. Seconds from the start of the replay, as the client sees them."""

    session: str
    number: int
    sent_s: float
    first_token_s: float
    end_s: float
    prompt_tokens: int
    gpu_hit_tokens: int
    dram_hit_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.sent_s

    @property
    def cached_tokens(self) -> int:
        return self.gpu_hit_tokens + self.dram_hit_tokens


class ScriptedRun(SessionRun):
    """A session whose prompts' blocks are given; those of its answers are its own."""

    def __init__(self, script: Script, hashes: Hashes) -> None:
        super().__init__(script.plan.name, script.plan, hashes, 0)
        self._prompts = script.prompts

    def chain(self, number: int) -> list[bytes]:
        chain = self._chains.get(number)
        if chain is None:
            num_full = self.plan.turns[number].num_full
            prompt = self._prompts[number][:num_full]
            chain = self._chains[number] = [*prompt, *self._hashes.new(num_full - len(prompt))]
        return chain


class ScriptedAgents:
    """All agents of one replay. `engine` must be set before `begin`."""

    def __init__(
        self,
        machine: Machine,
        keeper: Keeper,
        scripts: Sequence[Script],
        *,
        warm_up: Sequence[Script] = (),
        num_agents: int,
        begin_within_s: float,
        has_signals: bool,
        extra_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`warm_up`: requests of nobody that come before, one after the other; the agents begin at
        0 s of the machine's clock. `extra_s`: seconds by which the next request takes longer than
        the profile says, or less where below 0."""
        self.engine: Engine
        self.served: list[ServedTurn] = []
        self._machine = machine
        self._keeper = keeper
        self._num_agents = num_agents
        self._begin_within_s = begin_within_s
        self._has_signals = has_signals
        self._extra_s = extra_s
        # The API process handles one request after the other.
        self._api = Link(1.0, 0.0)
        self._hashes = Hashes()
        self._scripts: Iterator[Script] = iter(scripts)
        self._warm_up: Iterator[Script] = iter(warm_up)
        self._warming: SessionRun | None = None
        self._sent_s: dict[str, float] = {}

    def begin(self) -> None:
        self._next_warm_up()
        step_s = self._begin_within_s / self._num_agents
        for agent in range(self._num_agents):
            self._machine.events.push(agent * step_s, partial(self._next_session, agent * step_s))

    def finished(self, request: Request) -> None:
        """The turn is answered: its tool runs, or the agent takes the next session."""
        now_s, run = self._machine.now_s, request.run
        if run is self._warming:
            self._next_warm_up()
            return
        block_tokens = self._machine.block_tokens
        self.served.append(
            ServedTurn(
                session=run.name,
                number=request.number,
                sent_s=self._sent_s.pop(request.request_id),
                first_token_s=request.first_token_s,
                end_s=now_s,
                prompt_tokens=request.planned.turn.prompt_tokens,
                gpu_hit_tokens=request.gpu_hit * block_tokens,
                dram_hit_tokens=request.dram_hit * block_tokens,
            )
        )
        run.next_turn += 1
        if run.is_over:
            self._next_session(now_s)
        else:
            at_s = now_s + (request.planned.turn.wait_s or 0.0)
            self._machine.events.push(at_s, lambda: self._send(run, at_s))

    def _next_warm_up(self) -> None:
        script = next(self._warm_up, None)
        if script is not None:
            self._warming = ScriptedRun(script, self._hashes)
            self._send(self._warming, self._machine.now_s)

    def _next_session(self, at_s: float) -> None:
        script = next(self._scripts, None)
        if script is not None:
            self._send(ScriptedRun(script, self._hashes), at_s)

    def _send(self, run: SessionRun, at_s: float) -> None:
        """The client sends a turn; the engine has it when the API process is done with it.

        Events come after the step that runs: `at_s` is when the client really sent it.
        """
        machine, number = self._machine, run.next_turn
        planned = run.plan.turns[number]
        request_id = f"{run.name}/{number}"
        self._sent_s[request_id] = at_s
        if self._has_signals and number > 0:
            self._keeper.tool_done(run.name)
        profile = machine.profile
        api_s = profile.request_s + profile.request_token_s * planned.turn.prompt_tokens
        api_s = max(0.0, api_s + self._extra_s())

        arrived_s = self._api.transfer(at_s, api_s)

        def arrive() -> None:
            request = Request(
                request_id=request_id,
                slot=0,
                run=run,
                number=number,
                planned=planned,
                chain=run.chain(number),
                arrived_s=arrived_s,
                is_last=run.is_last and run is not self._warming,
                is_resume=number > 0,
            )
            self.engine.arrive(request, planned.turn.wait_s or 0.0)

        machine.events.push(arrived_s, arrive)
