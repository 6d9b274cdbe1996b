"""Tools, commands and time-outs of the calls that real agents make."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkv.signals import MAX_TEXT_CHARS, ToolCall
from agentkv.watch.calls import MAX_CALLS, offers_tools, tool_calls
from agentkv.watch.turn_end import Call, TurnEnd


def seen(tool: str, arguments: object) -> ToolCall:
    """What is made of one call."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    (call,) = tool_calls(TurnEnd("r", (Call(tool, text),), "tool"))
    return call


@pytest.mark.parametrize(
    ("tool", "arguments", "command"),
    [
        ("Bash", {"command": "pytest -q", "description": "Run the tests"}, "pytest -q"),
        ("bash", {"command": " ls\n"}, "ls"),
        ("execute_bash", {"command": "make", "is_input": "false"}, "make"),
        ("shell", {"command": ["bash", "-lc", "cd x && pytest"], "workdir": "/"}, "cd x && pytest"),
        ("shell", {"command": ["/bin/zsh", "-c", "ls"]}, "ls"),
        ("shell", {"command": ["git", "commit", "-m", "a b"]}, "git commit -m 'a b'"),
        ("container.exec", {"cmd": ["bash", "-lc", "ls"]}, "ls"),
        ("exec_command", {"cmd": "cargo test", "yield_time_ms": 1000}, "cargo test"),
        ("write_stdin", {"session_id": 1, "chars": "y\n"}, "y"),
        ("execute_command", {"command": "npm ci", "requires_approval": False}, "npm ci"),
        ("run_terminal_cmd", {"command": "ls", "is_background": False}, "ls"),
        ("run_command", {"CommandLine": "ls", "Cwd": "/"}, "ls"),
        ("str_replace_editor", {"command": "view", "path": "/a.py"}, "view /a.py"),
        ("Read", {"file_path": "/a.py", "limit": 3}, "/a.py"),
        ("read", {"filePath": "/a.py"}, "/a.py"),
        ("Edit", {"file_path": "/a.py", "old_string": "x", "new_string": "y"}, "/a.py"),
        ("Grep", {"pattern": "def f"}, "def f"),
        ("WebFetch", {"url": "https://example.org", "prompt": "x"}, "https://example.org"),
        ("Task", {"description": "Find it", "prompt": "x" * 9000}, "Find it"),
        ("python", {"code": "print(1)"}, "print(1)"),
        ("python", "print({1: 2})", "print({1: 2})"),
        ("apply_patch", "*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** End Patch"),
        ("Bash", '"ls -l"', "ls -l"),
        ("Bash", '{"command": "ls', None),
        ("Bash", {"command": ["ls", 3]}, None),
        ("Bash", {"command": {"a": 1}}, None),
        ("get_weather", {"city": "Bern"}, None),
        ("x", [1], None),
        ("x", "", None),
    ],
)
def test_the_command_of_a_call(tool: str, arguments: object, command: str | None) -> None:
    call = seen(tool, arguments)
    assert (call.tool, call.command) == (tool, command)


@pytest.mark.parametrize(
    ("tool", "arguments", "timeout_s"),
    [
        ("Bash", {"timeout": 120000}, 120),
        ("Bash", {"timeout": 5000}, 5),
        ("PowerShell", {"timeout": 600}, 0.6),
        ("bash", {"timeout": 120000}, 120),  # OpenCode
        ("bash", {"timeout": 180}, 180),  # pi
        ("bash", {"timeout": 3600}, 3600),
        ("execute_bash", {"timeout": 36000}, 36000),
        ("execute_command", {"command": "x", "timeout": 30}, 30),
        ("shell", {"timeout_ms": 10000}, 10),
        ("exec_command", {"cmd": "x", "yield_time_ms": 1500}, 1.5),
        ("anything", {"timeoutSeconds": 7}, 7),
        ("anything", {"timeout_seconds": 7, "timeout_ms": 3000}, 3),
        ("anything", {"timeout_s": "2.5"}, 2.5),
        ("anything", {"timeoutMs": 2500}, 2.5),
        ("anything", {"timeout": 0}, None),
        ("anything", {"timeout": -1}, None),
        ("anything", {"timeout": True}, None),
        ("anything", {"timeout": "soon"}, None),
        ("anything", {"timeout": None}, None),
        ("anything", {"timeout_s": 1e300}, None),
        ("anything", '{"timeout": 1e999}', None),
        ("anything", '{"timeout": NaN}', None),
        ("anything", {"timestamp": 12, "time": 3}, None),
    ],
)
def test_the_time_out_of_a_call(tool: str, arguments: object, timeout_s: float | None) -> None:
    assert seen(tool, arguments).timeout_s == pytest.approx(timeout_s)


@pytest.mark.parametrize("key", ["run_in_background", "is_background", "isBackground"])
def test_a_call_in_the_background_returns_at_once(key: str) -> None:
    started = seen("Bash", {"command": "npm run dev", key: True}).expected_wait_s
    assert started is not None
    assert started < 1
    assert seen("Bash", {"command": "npm run dev", key: False}).expected_wait_s is None


def test_parallel_calls_stay_in_order_and_nameless_ones_are_left_out() -> None:
    calls = (Call("a", "{}"), Call("  ", "{}"), Call("b", "{}"))
    assert [c.tool for c in tool_calls(TurnEnd("r", calls, "tool"))] == ["a", "b"]


def test_no_more_calls_than_an_event_carries() -> None:
    calls = tuple(Call("a", "{}") for _ in range(MAX_CALLS + 1))
    assert len(tool_calls(TurnEnd("r", calls, "tool"))) == MAX_CALLS


def test_a_turn_without_calls_has_none() -> None:
    assert tool_calls(TurnEnd("r", (), "human")) == ()


def test_long_text_is_cut_to_what_a_signal_carries() -> None:
    assert seen("x", {"command": "y" * 99_999}).command == "y" * MAX_TEXT_CHARS


@given(
    tool=st.text(),
    arguments=st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["command", "cmd", "path", "timeout", "timeout_ms", "is_background"]
                ),
                inner,
            )
        ),
    ).map(json.dumps),
)
@example(tool="\ud800", arguments='{"command": "\\ud800"}')
@example(tool="x", arguments="[" * 100_000)
@example(tool="x", arguments='{"timeout": ' + "9" * 5000 + "}")
@example(tool="x", arguments='{"timeout": ' + "9" * 4000 + "}")
def test_whatever_a_model_writes_can_be_sent_on(tool: str, arguments: str) -> None:
    for call in tool_calls(TurnEnd("r", (Call(tool, arguments),), "tool")):
        assert ToolCall.model_validate_json(call.model_dump_json()) == call


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"tools": [{"type": "function"}]}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, False),
        ({"tools": [{"name": "Bash"}], "tool_choice": {"type": "none"}}, False),
        ({"tools": []}, False),
        ({"messages": []}, False),
        (None, False),
    ],
)
def test_whether_a_request_offers_tools(body: dict[str, Any] | None, expected: bool) -> None:
    assert offers_tools(body) is expected
