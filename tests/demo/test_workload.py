"""The planned sessions: append-only, the same for a seed, honest about what was cut."""

import pytest

from agentkv.demo.text import RecordedSession
from agentkv.demo.waits import shipped_waits
from agentkv.demo.workload import (
    PromptCounter,
    Workload,
    cap_waits,
    fitting_cap_s,
    shipped_workload,
)

from .builders import planned, session, workload


def build(
    recorded: list[RecordedSession], counter: PromptCounter, seed: int = 0, num_sessions: int = 6
) -> Workload:
    return shipped_workload(
        recorded,
        counter,
        shipped_waits(),
        seed=seed,
        num_sessions=num_sessions,
        max_context_tokens=6000,
    )


@pytest.fixture
def shipped(recorded: list[RecordedSession], counter: PromptCounter) -> Workload:
    return build(recorded, counter)


def test_each_prompt_is_a_token_prefix_of_the_next(
    shipped: Workload, counter: PromptCounter
) -> None:
    for each in shipped.sessions:
        for before, after in zip(each.turns, each.turns[1:], strict=False):
            ids = counter.ids(before.messages)
            assert counter.ids(after.messages)[: len(ids)] == ids
            assert after.known_tokens == before.prompt_tokens == len(ids)


def test_no_prompt_passes_the_limit_and_contexts_of_4000_tokens_are_reached(
    shipped: Workload,
) -> None:
    assert len(shipped.sessions) == 6 and all(len(each.turns) >= 3 for each in shipped.sessions)
    longest = [each.turns[-1].prompt_tokens for each in shipped.sessions]
    assert 4000 < max(longest) <= 6000


def test_the_same_seed_gives_the_same_workload_and_another_seed_another(
    recorded: list[RecordedSession], counter: PromptCounter, shipped: Workload
) -> None:
    assert build(recorded, counter) == shipped
    assert build(recorded, counter, seed=1) != shipped


def test_sessions_over_the_same_recording_share_no_block_of_text(
    recorded: list[RecordedSession], counter: PromptCounter
) -> None:
    many = build(recorded[:2], counter, num_sessions=4)
    assert len({each.session_id for each in many.sessions}) == 4
    first, _, again, _ = many.sessions
    assert counter.known(again.turns[0].messages, [first.turns[0].messages]) < 16


def test_tags_name_the_tool_but_never_the_wait() -> None:
    turn = planned(wait_s=51.0, tool="bash", command="pytest -q", timeout_s=120.0)
    tags = turn.tags(is_last=False)
    assert tags == {"tool": "bash", "command": "pytest -q", "timeout_s": 120.0}
    assert turn.tags(is_last=True) == {"last_turn": True}
    assert planned(tool=None, command=None).tags(is_last=False) == {}


def test_waits_are_cut_not_scaled_and_the_cut_is_counted() -> None:
    turns = [planned(recorded_wait_s=wait_s) for wait_s in (0.5, 51.0, 7.0, 99.0)]
    capped = cap_waits(workload(session("a", *turns)), 6.0)
    assert [turn.wait_s for turn in capped.sessions[0].turns] == [0.5, 6.0, 6.0, 6.0]
    # The last turn ends the session: no pause follows it.
    assert capped.notes["waits_cut"] == 2
    assert capped.notes["waits_total"] == 3
    assert capped.notes["longest_wait_s"] == 51.0


def test_the_largest_cap_is_chosen_with_which_the_agents_are_done_in_time() -> None:
    sessions = [session(name, *[planned(recorded_wait_s=100.0)] * 3) for name in "abcd"]
    # Two agents play two sessions each: four waits, and six turns of 0.15 s.
    assert fitting_cap_s(workload(*sessions), num_agents=2, budget_s=33.0) == 8.0
    assert fitting_cap_s(workload(*sessions), num_agents=2, budget_s=32.0) == 6.0
    assert fitting_cap_s(workload(*sessions), num_agents=4, budget_s=33.0) == 12.0
    assert fitting_cap_s(workload(*sessions), num_agents=1, budget_s=1.0) == 0.5
