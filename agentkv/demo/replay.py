"""Plays the sessions against one server in a closed loop: turn, pause, turn, as agents do.

`num_agents` agents take the next session as soon as their last one ends, so the load follows the
speed of the server. Played twice, with and without the plugin; the requests are the same token by
token, so the two results can be joined turn by turn.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import httpx

from agentkv.demo.agents import Agent, ClientKind
from agentkv.demo.client import MODEL_NAME, TurnResult, send_async
from agentkv.demo.workload import PlannedSession, Workload

REQUEST_TIMEOUT_S = 1800.0
"""Where much is computed again agentkv holds turns back, for minutes (`agentkv.admission`)."""


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One turn as it went; times in seconds from the start of the replay."""

    session_id: str
    turn: int
    start_s: float
    end_s: float
    result: TurnResult


@dataclass(frozen=True, slots=True)
class Replay:
    """All turns of one run, by (session id, turn); `began_at_s` is wall time, as in the ledger."""

    began_at_s: float
    duration_s: float
    turns: dict[tuple[str, int], PlayedTurn]


class ReplayWatcher(Protocol):
    """Told what the agents do; called in the event loop, so it must return quickly."""

    def turn_started(self, agent: int, session: PlannedSession, turn: int) -> None:
        """Agent `agent` sent a request."""
        ...

    def pause_started(self, agent: int, session: PlannedSession, turn: int) -> None:
        """The answer to `turn` is complete and its tool runs."""
        ...

    def session_ended(self, agent: int, session: PlannedSession) -> None:
        """The last turn of the session is complete."""
        ...


def play(
    url: str,
    workload: Workload,
    *,
    num_agents: int,
    max_tokens: int,
    watcher: ReplayWatcher,
    client_kind: ClientKind,
    model: str = MODEL_NAME,
    begin_within_s: float = 0.0,
    calls_tools: bool = False,
) -> Replay:
    """Plays all sessions; the agents begin one after the other within `begin_within_s`.

    With `calls_tools` the answers are the tool calls of the plan instead of `max_tokens` tokens.
    Raises RequestError or httpx.HTTPError as soon as one request fails.
    """
    make_agent = partial(Agent, client_kind, model=model, calls_tools=calls_tools)
    player = _Player(workload, max_tokens, watcher, make_agent, begin_within_s)
    return asyncio.run(player.play(url, num_agents))


class _Player:
    """One replay; owned by its event loop."""

    def __init__(
        self,
        workload: Workload,
        max_tokens: int,
        watcher: ReplayWatcher,
        make_agent: Callable[[PlannedSession], Agent],
        begin_within_s: float,
    ) -> None:
        self._make_agent = make_agent
        self._begin_within_s = begin_within_s
        self._sessions: Iterator[PlannedSession] = iter(workload.sessions)
        self._max_tokens = max_tokens
        self._watcher = watcher
        self._turns: dict[tuple[str, int], PlayedTurn] = {}
        self._began_s = 0.0

    async def play(self, url: str, num_agents: int) -> Replay:
        limits = httpx.Limits(max_connections=num_agents, max_keepalive_connections=num_agents)
        async with httpx.AsyncClient(
            base_url=url, timeout=REQUEST_TIMEOUT_S, limits=limits
        ) as client:
            began_at_s, self._began_s = time.time(), time.perf_counter()
            step_s = self._begin_within_s / num_agents
            await asyncio.gather(
                *(self._agent(client, agent, agent * step_s) for agent in range(num_agents))
            )
        return Replay(began_at_s=began_at_s, duration_s=self._now_s(), turns=self._turns)

    async def _agent(self, client: httpx.AsyncClient, number: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        # The iterator is shared: whoever is free takes the next session.
        for session in self._sessions:
            agent = self._make_agent(session)
            async with agent.session(str(client.base_url)):
                for turn in range(len(session.turns)):
                    await self._turn(client, number, session, turn, agent)
            self._watcher.session_ended(number, session)

    async def _turn(
        self,
        client: httpx.AsyncClient,
        agent_number: int,
        session: PlannedSession,
        number: int,
        agent: Agent,
    ) -> None:
        """A turn, and the pause after it unless it is the last."""
        request = agent.request(number, max_tokens=self._max_tokens)
        self._watcher.turn_started(agent_number, session, number)
        start_s = self._now_s()
        result = await send_async(client, request)
        self._turns[session.session_id, number] = PlayedTurn(
            session_id=session.session_id,
            turn=number,
            start_s=start_s,
            end_s=self._now_s(),
            result=result,
        )
        if number < len(session.turns) - 1:
            self._watcher.pause_started(agent_number, session, number)
            async with agent.tool(session.turns[number]):
                await asyncio.sleep(session.turns[number].wait_s)

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s
