"""Answers that the model has to give: what the requests of an agent without tags ask for."""

import json
from typing import Any

import pytest

from agentkv.demo.agents import Agent, ClientKind
from agentkv.demo.client import TurnRequest
from agentkv.demo.forced_answers import ForcedCall, ForcedEnd

from .builders import planned, session

PLANNED = session("a", planned(tool="bash", command='grep -n "ü" a\\b'), planned(), planned())


def body(kind: ClientKind, number: int, *, calls_tools: bool) -> dict[str, Any]:
    agent = Agent(kind, PLANNED, calls_tools=calls_tools)
    return agent.request(number, max_tokens=8).body()


def test_the_model_has_one_command_to_choose() -> None:
    sent = body(ClientKind.PLAIN, 0, calls_tools=True)
    (tool,) = json.loads(json.dumps(sent["tools"]))
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "bash"}}
    schema = tool["function"]["parameters"]
    assert tool["function"]["name"] == "bash"
    assert schema["properties"]["command"]["enum"] == ['grep -n "ü" a\\b']
    assert schema["required"] == ["command"] and not schema["additionalProperties"]
    assert "ignore_eos" not in sent, "the answer ends with the call"
    assert "kv_transfer_params" not in sent, "nothing that another server would not know"


@pytest.mark.parametrize("kind", list(ClientKind))
def test_without_tool_calls_the_answer_has_a_fixed_length(kind: ClientKind) -> None:
    sent = body(kind, 0, calls_tools=False)
    assert (sent["max_tokens"], sent["ignore_eos"]) == (8, True)
    assert "tools" not in sent and "tool_choice" not in sent


def test_a_turn_without_a_command_calls_no_tool_and_the_last_one_ends_the_work() -> None:
    silent = session("a", planned(tool=None, command=None), planned(), planned())
    agent = Agent(ClientKind.PLAIN, silent, calls_tools=True)
    forced = [agent.request(number, max_tokens=8).forced for number in range(3)]
    assert forced == [None, ForcedCall("bash", "pytest -q"), ForcedEnd("bash")]


def test_at_the_end_a_tool_could_be_called_and_the_model_says_something_else() -> None:
    sent = body(ClientKind.PLAIN, 2, calls_tools=True)
    assert sent["tools"] and sent["tool_choice"] == "auto" and "ignore_eos" not in sent
    assert sent["response_format"]["json_schema"]["schema"]["enum"] == ["Done."]


def test_a_long_command_is_cut_and_says_what_runs() -> None:
    call = ForcedCall.of("bash", "cd /src && cd a; pytest -q " + "tests/" * 20)
    assert call.command.startswith("pytest -q tests/") and len(call.command) == 40


def test_a_call_takes_the_place_of_the_fixed_length() -> None:
    request = TurnRequest(None, [], max_tokens=2, forced=ForcedCall("bash", "ls"))
    assert int(request.body()["max_tokens"]) > 100
