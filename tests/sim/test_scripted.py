"""The closed loop with given sessions: who sends when, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from sim.builders import BLOCK_TOKENS, small_profile

from agentkv.clock import ManualClock
from agentkv.sim.dram import Dram
from agentkv.sim.engine import Engine
from agentkv.sim.keeper import NativeKeeper
from agentkv.sim.machine import Link, Machine
from agentkv.sim.pool import Pool
from agentkv.sim.scripted import Script, ScriptedAgents, ServedTurn
from agentkv.sim.tally import Tally
from agentkv.sim.trace import TraceSession, TraceTurn
from agentkv.sim.workload import plan_sessions

PROMPT, ANSWER = 640, 5


def script(name: str, *waits_s: float, shared_blocks: int = 0) -> Script:
    """A session whose prompts are the same at every turn; a wait after each, the last unused."""
    turns = tuple(TraceTurn(PROMPT, ANSWER, wait_s=wait_s) for wait_s in waits_s)
    (plan,) = plan_sessions([TraceSession(name, turns)], BLOCK_TOKENS, most_tokens=1e9)
    num_blocks = PROMPT // BLOCK_TOKENS
    blocks = [f"shared/{i}".encode() for i in range(shared_blocks)]
    blocks += [f"{name}/{i}".encode() for i in range(shared_blocks, num_blocks)]
    return Script(plan, (tuple(blocks),) * len(waits_s))


def play(
    scripts: list[Script],
    *,
    warm_up: tuple[Script, ...] = (),
    begin_within_s: float = 20.0,
    request_s: float = 0.25,
    **changes: Any,
) -> list[ServedTurn]:
    profile = small_profile(request_s=request_s, **changes)
    machine = Machine(
        profile=profile,
        block_tokens=BLOCK_TOKENS,
        pool=Pool(1000),
        dram=Dram(0),
        load_link=Link(1e9, 0.0),
        clock=ManualClock(-10.0),
    )
    keeper = NativeKeeper(machine)
    agents = ScriptedAgents(
        machine,
        keeper,
        scripts,
        warm_up=warm_up,
        num_agents=2,
        begin_within_s=begin_within_s,
        has_signals=False,
    )
    agents.engine = engine = Engine(machine, keeper, Tally(machine, 0.0), agents.finished)
    agents.begin()
    engine.run(float("inf"))
    machine.pool.check()
    return agents.served


def test_agents_begin_one_by_one_wait_after_the_answer_and_go_on() -> None:
    scripts = [script("a", 3.0, 0.0), script("b", 0.0), script("c", 0.0)]
    served = play(scripts, begin_within_s=4.0)
    by_name = {(turn.session, turn.number): turn for turn in served}
    first, second = by_name["a", 0], by_name["a", 1]
    assert first.sent_s == 0.0
    assert second.sent_s == pytest.approx(first.end_s + 3.0)
    # The other agent begins two seconds later, and takes the next session when its first ends.
    assert by_name["b", 0].sent_s == 2.0
    assert by_name["c", 0].sent_s == pytest.approx(by_name["b", 0].end_s)
    assert first.ttft_s > 0.25 and first.end_s > first.first_token_s
    assert (first.cached_tokens, second.cached_tokens) == (0, PROMPT - BLOCK_TOKENS)


def test_the_warm_up_comes_before_and_is_not_counted() -> None:
    warm_up = (script("w1", 0.0), script("w2", 0.0, shared_blocks=4))
    served = play([script("a", 0.0, shared_blocks=4)], warm_up=warm_up)
    assert [turn.session for turn in served] == ["a"]
    assert served[0].sent_s == 0.0
    # It left its blocks: what a session shares with it is found.
    assert served[0].cached_tokens == 4 * BLOCK_TOKENS


def test_the_api_process_handles_one_request_after_the_other() -> None:
    scripts = [script("a", 9.75, 0.0), script("b", 0.0)]
    alone = play(scripts[:1])
    both = play(scripts)
    (second,) = (turn for turn in both if turn.session == "b")
    (resumed,) = (turn for turn in both if turn.number == 1)
    (before,) = (turn for turn in alone if turn.number == 1)
    # Sent a bit after the other's, which is still being read.
    assert second.sent_s < resumed.sent_s < second.sent_s + 0.25
    waited_s = second.sent_s + 0.25 - resumed.sent_s
    assert resumed.ttft_s >= before.ttft_s + waited_s - 1e-6


@pytest.mark.parametrize("is_async", [False, True])
def test_who_arrives_during_a_step_waits_for_the_one_that_is_planned(is_async: bool) -> None:
    """A prompt of two steps runs and another arrives in the first: it is in the second step only
    where that was not put together before the first began."""
    (plan,) = plan_sessions(
        [TraceSession("long", (TraceTurn(3000, 2),))], BLOCK_TOKENS, most_tokens=1e9
    )
    blocks = tuple(f"long/{i}".encode() for i in range(3000 // BLOCK_TOKENS))
    scripts = [Script(plan, (blocks,)), script("short", 0.0)]
    served = play(scripts, begin_within_s=0.02, request_s=0.0, is_async=is_async)
    long, short = sorted(served, key=lambda turn: turn.session)
    first_s, second_s = _prefill_s(0, 2048), _prefill_s(2048, 3000)
    assert short.sent_s == 0.01 < first_s
    if is_async:
        assert long.first_token_s == pytest.approx(first_s + second_s)
        # Beside its prompt the long one's answer goes on: a decode step.
        alone_s = 0.01 + _prefill_s(0, 640)
        assert short.first_token_s == pytest.approx(long.first_token_s + alone_s, abs=1e-3)
    else:
        assert long.first_token_s == pytest.approx(first_s + second_s + _prefill_s(0, 640))
        assert short.first_token_s == long.first_token_s


def _prefill_s(start: int, end: int) -> float:
    return small_profile().prefill_s(end - start, (start + end) / 2)
