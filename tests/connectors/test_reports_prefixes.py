"""Public bug reports about prompts that change where they should not: what the pool then finds.

Each test is named after its report in `tests/BUG_REPORTS.md`. Which client or template does it is
told by `agentkv doctor`, see `tests/doctor`.
"""

from __future__ import annotations

from collections.abc import Callable

from kit import Agent, Rig, blocks, prompt

RigFactory = Callable[..., Rig]
HEAD_TOKENS, CHANGED_AT, NUM_CHANGED = 600, 40, 4
TOOL = {"tool": "bash", "expected_wait_s": 5.0}


def test_a90_a_changing_line_near_the_head_is_paid_for_and_nothing_is_held_for_it(
    make_rig: RigFactory,
) -> None:
    """Ten turns with four other tokens at position 40: two blocks match, and the rest of each turn
    is worthless as soon as the next one is done."""
    rig = make_rig(pool_blocks=104, dram_blocks=200)
    other = Agent(rig, "other", 7, 20)
    other.turn(tag=TOOL)
    agent = Agent(rig, "agent", 1, HEAD_TOKENS / 16)
    for number in range(10):
        if number:
            line = prompt(100 + number, NUM_CHANGED)
            agent.context[CHANGED_AT : CHANGED_AT + NUM_CHANGED] = line
        result = agent.turn(tag=TOOL)
        assert result.gpu_hit_tokens == (32 if number else 0)
        assert result.dram_hit_tokens == 0
    (session,) = (s for s in rig.controller.sessions if s.key.name == "agent")
    assert len(session.branches) == 1
    assert rig.cached_blocks(other.context) == 20, "10 turns of 38 blocks have pushed nobody out"


def test_a93_a_template_that_drops_thinking_keeps_what_stands_before_it(
    make_rig: RigFactory,
) -> None:
    """user, reply with thinking, tool, reply: then the user speaks, and the thinking is gone."""
    rig = make_rig(pool_blocks=64, dram_blocks=64)
    agent = Agent(rig, "agent", 1, 6)
    agent.turn(max_tokens=blocks(3), tag=TOOL)  # thinks, and calls a tool
    agent.turn(tool_tokens=blocks(2), tag=TOOL)
    long = list(agent.context)
    thinking = slice(blocks(6) + 8, blocks(8))
    agent.context = long[: thinking.start] + long[thinking.stop :]
    result = agent.turn(tool_tokens=blocks(1), tag=TOOL)
    assert result.gpu_hit_tokens == blocks(6), "up to the block with the first other token"
    assert result.dram_hit_tokens == 0
    rig.run("fill", prompt(9, blocks(64 - 10) - 4), tag={"last_turn": True})
    assert rig.cached_blocks(long) == 6, "what it turned away from went first"
    assert rig.cached_blocks(agent.context) == 10
