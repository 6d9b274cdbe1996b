"""The same faults by the other APIs, and logs in the forms that proxies write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.doctor.diagnose import diagnose
from agentkv.doctor.log_file import read_log
from agentkv.errors import ConfigError
from tests.doctor import faults
from tests.doctor.builders import FORMS, Agent, as_messages, causes, examine, named

IN_ALL_FORMS = [
    (faults.clock, "changing_field"),
    (faults.hoisted_notes, "hoisted_notes"),
    (faults.modes, "head_replaced"),
    (faults.tool_order, "tool_order"),
    (faults.tool_gone, "tool_set"),
    (faults.tool_schema_order, "serialisation"),
    (faults.argument_order, "serialisation"),
    (faults.dropped_thinking, "dropped_thinking"),
    (faults.sliding_window, "trimmed_history"),
    (faults.cleared_results, "edited_history"),
    (faults.cut_results, "edited_history"),
    (faults.compaction, "compaction"),
    (faults.reminder_in_newest, "ephemeral_note"),
    (faults.memory_first, "inserted_message"),
    (faults.salt_per_request, "cache_salt"),
    (faults.effort, "template_settings"),
]


@pytest.mark.parametrize("form", ["messages", "responses"])
@pytest.mark.parametrize(
    ("fault", "cause"), IN_ALL_FORMS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_fault_is_the_same_fault_by_every_api(
    fault: Any, cause: str, form: str, tmp_path: Path
) -> None:
    diagnosis = examine(tmp_path, [FORMS[form](body) for body in fault(3)])
    assert causes(diagnosis) == {cause}
    assert {finding.session for finding in diagnosis.findings} == {"unnamed-1"}


WRAPPINGS: list[Any] = [
    lambda body: body,
    lambda body: {"body": body},
    lambda body: {"body": json.dumps(body)},
    lambda body: {"ts": 1, "request": {"url": "/v1/x", "headers": [["A", "b"]], "body": body}},
    lambda body: {"session": "s", "payload": body, "usage": None},
    lambda body: {"kwargs": body, "response": None},
]


@pytest.mark.parametrize("wrap", WRAPPINGS)
def test_a_body_is_found_in_whatever_it_is_wrapped_in(wrap: Any, tmp_path: Path) -> None:
    bodies = faults.tool_order(1)
    plain = examine(tmp_path, bodies)
    wrapped = examine(tmp_path, [wrap(body) for body in bodies])
    assert plain.tokens_lost == wrapped.tokens_lost > 0
    assert causes(wrapped) == {"tool_order"} and not wrapped.skipped


def test_what_is_no_request_is_told_with_its_line_and_reason(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    good = json.dumps(Agent(1).body())
    lines = [good, "{", "[1]", '{"a": 1}', "", '{"messages": []}', '{"input": 3, "x": "é"}', good]
    previous = json.dumps({"input": "hi", "previous_response_id": "resp_1"})
    log.write_bytes("\n".join([*lines, previous]).encode() + b"\n\xff\xfe\n" + b"[" * 100_000)
    diagnosis = diagnose(read_log(log))
    assert diagnosis.num_requests == 2
    assert [each.line for each in diagnosis.skipped] == [2, 3, 4, 6, 7, 9, 10, 11]
    assert all(each.reason for each in diagnosis.skipped)
    assert "previous_response_id" in diagnosis.skipped[5].reason


ODD: list[Any] = [
    {"messages": [1, None, {"role": 3, "content": {"a": 1}}, {"content": [None, 3, {}]}]},
    {"messages": [{"role": "user", "content": "hi", "tool_calls": "x"}], "tools": {"a": 1}},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": 3}, {}]}], "tools": [3, {}]},
    {"messages": [{"role": "tool", "content": [{"type": "text"}, {"type": "image"}]}]},
    {"input": [{"type": "web_search_call"}, {"role": "user"}, 3], "instructions": [3]},
    {"prompt": [[1, 2], [3]]},
    {"headers": [["x"]], "body": {"messages": [{"role": "user", "content": "x"}]}, "usage": [3]},
    {"body": {"messages": [{"role": "user", "content": "\ud800"}]}, "response": {"choices": [3]}},
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_requests_do_no_harm(odd: Any, tmp_path: Path) -> None:
    bodies = Agent(1).run(3)
    diagnosis = examine(tmp_path, [odd, *bodies, odd])
    assert diagnosis.findings == () and diagnosis.num_compared >= 2
    assert diagnosis.num_requests + len(diagnosis.skipped) == 5


def test_a_missing_log_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: cannot be read: No such file"):
        list(read_log(tmp_path / "none.jsonl"))


def test_sessions_are_told_apart_by_what_real_clients_send(tmp_path: Path) -> None:
    header = {"x-claude-code-session-id": "abc", "X-Claude-Code-Agent-Id": "a1"}
    mine = [{"headers": header, "body": as_messages(body)} for body in faults.clock(1)]
    theirs = named(faults.tool_gone(2), "other")
    diagnosis = examine(
        tmp_path, [each for pair in zip(mine, theirs, strict=True) for each in pair]
    )
    found = {(finding.session, finding.cause.value) for finding in diagnosis.findings}
    assert found == {("abc/a1", "changing_field"), ("other", "tool_set")}


def test_what_vllm_takes_away_itself_is_no_fault(tmp_path: Path) -> None:
    """A90 where the line begins the system prompt, which vLLM 0.32 strips."""

    def body_with_line(turn: int, body: Any) -> Any:
        head = body["messages"][0]
        head["content"] = f"x-anthropic-billing-header: cch={turn:05x};\n{head['content']}"
        return body

    bodies = [body_with_line(turn, body) for turn, body in enumerate(Agent(1).run(5))]
    assert examine(tmp_path, bodies).findings == ()
