"""The closed loop: order of turns, waits between them, who takes the next session."""

import asyncio
from typing import Any

import pytest

from agentkv.config_admission import AdmissionConfig
from agentkv.demo import replay as replay_module
from agentkv.demo.agents import ClientKind
from agentkv.demo.client import TurnRequest, TurnResult
from agentkv.demo.replay import REQUEST_TIMEOUT_S, Replay, play

from .builders import planned, result, session, workload


class Silent:
    def turn_started(self, *_: Any) -> None: ...
    def pause_started(self, *_: Any) -> None: ...
    def session_ended(self, *_: Any) -> None: ...


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[TurnRequest]:
    """Answers every request at once and keeps it."""
    seen: list[TurnRequest] = []

    async def answer(_client: Any, request: TurnRequest) -> TurnResult:
        seen.append(request)
        await asyncio.sleep(0.001)
        return result(text=request.session_id)

    monkeypatch.setattr(replay_module, "send_async", answer)
    return seen


def run(
    num_agents: int, *, client_kind: ClientKind = ClientKind.TAGS, **waits: list[float]
) -> Replay:
    sessions = [
        session(name, *(planned(wait_s=wait_s) for wait_s in each)) for name, each in waits.items()
    ]
    return play(
        "http://x",
        workload(*sessions),
        num_agents=num_agents,
        max_tokens=4,
        watcher=Silent(),
        client_kind=client_kind,
    )


def test_every_turn_is_played_once_and_in_order(requests: list[TurnRequest]) -> None:
    played = run(2, a=[0.0] * 3, b=[0.0] * 2, c=[0.0])
    assert sorted(played.turns) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    starts = [played.turns["a", turn].start_s for turn in range(3)]
    assert starts == sorted(starts)


def test_the_next_turn_waits_for_the_tool(requests: list[TurnRequest]) -> None:
    played = run(1, a=[0.2, 0.0, 5.0])
    first, second, third = (played.turns["a", turn] for turn in range(3))
    assert 0.2 <= second.start_s - first.end_s < 0.4
    assert third.start_s - second.end_s < 0.1
    # No pause follows the last turn.
    assert played.duration_s < 2


def test_one_agent_plays_one_session_after_the_other(requests: list[TurnRequest]) -> None:
    run(1, a=[0.01, 0.01], b=[0.01, 0.01])
    assert [request.session_id for request in requests] == ["a", "a", "b", "b"]


def test_only_the_last_turn_says_that_the_session_ends(requests: list[TurnRequest]) -> None:
    run(1, a=[0.0, 0.0])
    assert [request.tags.get("last_turn") for request in requests] == [None, True]
    assert all(request.with_token_ids for request in requests)


@pytest.mark.parametrize(
    ("kind", "headers", "has_tags"),
    [
        (ClientKind.PLAIN, {}, False),
        (ClientKind.HEADER, {"X-Session-ID": "a"}, False),
        (ClientKind.TAGS, {"X-Session-ID": "a"}, True),
        (ClientKind.SDK, {"X-Session-ID": "a"}, False),
    ],
)
def test_each_kind_of_client_says_no_more_than_it_would(
    requests: list[TurnRequest], kind: ClientKind, headers: dict[str, str], has_tags: bool
) -> None:
    run(1, client_kind=kind, a=[0.0, 0.0])
    for request in requests:
        assert request.headers() == headers
        assert ("kv_transfer_params" in request.body()) == has_tags


def test_a_turn_that_admission_holds_back_is_waited_for() -> None:
    assert 2 * AdmissionConfig().max_wait_s < REQUEST_TIMEOUT_S
