"""What a fault costs, how grave it is, and what of it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.doctor.causes import Cause
from agentkv.doctor.finding import severity_of
from agentkv.doctor.masks import evidence, without_secrets
from tests.doctor import faults
from tests.doctor.builders import Agent, Body, causes, examine, head_of


def test_all_after_the_first_difference_is_lost(tmp_path: Path) -> None:
    """By hand: a head of 4,000 letters that changes at 1,000, then 2,000 of one message."""
    bodies = []
    for turn in range(2):
        head = "a" * 1000 + f"{turn}" + "b" * 2999
        messages = [{"role": "system", "content": head}, {"role": "user", "content": "c" * 2000}]
        if turn:
            messages.append({"role": "assistant", "content": "d" * 4000})
        bodies.append({"messages": messages})
    [found] = examine(tmp_path, bodies).findings
    assert found.tokens_lost == (4000 + 2000 - 1000) // 4
    assert found.is_estimate and found.severity.value == "high"
    assert (found.turn, found.line, found.after_line) == (2, 2, 1)


def test_no_more_is_lost_than_the_new_prompt_has(tmp_path: Path) -> None:
    """A history of 40,000 letters that became a summary of 400: the head is found again."""
    head = [{"role": "system", "content": "a" * 4000}]
    told = [
        {"role": role, "content": letter * 10_000}
        for role, letter in (("user", "b"), ("assistant", "c"), ("user", "d"), ("assistant", "e"))
    ]
    summary = {"role": "user", "content": "<summary>" + "f" * 391}
    headers = {"X-Session-ID": "s"}
    entries = [
        {"headers": headers, "body": {"messages": [*head, *messages]}}
        for messages in (told, [summary])
    ]
    [found] = examine(tmp_path, entries).findings
    assert found.cause.value == "compaction" and found.tokens_lost == 400 // 4


def test_the_servers_own_count_says_how_many_letters_a_token_has(tmp_path: Path) -> None:
    bodies = faults.tool_gone(1)
    plain = examine(tmp_path, bodies)
    counted = [
        {"body": body, "usage": {"prompt_tokens": 10 * chars_of(tmp_path, body)}} for body in bodies
    ]
    ratio = examine(tmp_path, counted).tokens_lost / plain.tokens_lost
    assert ratio == pytest.approx(40, rel=0.01)


def chars_of(tmp_path: Path, body: Body) -> int:
    from agentkv.doctor.log_file import read_log
    from tests.doctor.builders import write_log

    [request] = read_log(write_log(tmp_path / "one.jsonl", [body]))
    assert not hasattr(request, "reason")
    return request.num_chars  # type: ignore[union-attr]


def test_a_fault_behind_another_is_told_and_not_counted_twice(tmp_path: Path) -> None:
    bodies = faults.clock(1)
    once = examine(tmp_path, bodies)
    for turn, body in enumerate(bodies):
        if turn % 2:
            body["tools"].reverse()
    twice = examine(tmp_path, bodies)
    assert causes(twice) == {"changing_field"}
    assert {each.cause.value for each in twice.findings if each.is_hidden} == {"tool_order"}
    assert twice.tokens_lost == once.tokens_lost <= twice.tokens_known


def test_what_is_lost_is_never_more_than_what_was_known(tmp_path: Path) -> None:
    for make, _ in faults.FAULTS.values():
        diagnosis = examine(tmp_path, make(5))
        assert 0 <= diagnosis.tokens_lost <= diagnosis.tokens_known
        assert all(finding.tokens_lost >= 0 for finding in diagnosis.findings)


def test_a_difference_smaller_than_a_block_is_no_word_worth(tmp_path: Path) -> None:
    agent = Agent(1)
    first = agent.body()
    first["messages"][-1]["content"] += "\n<note>12</note>"
    agent.go_on()
    assert examine(tmp_path, [first, agent.body()]).findings == ()


@pytest.mark.parametrize(
    ("cause", "lost", "severity"),
    [
        (Cause.CHANGING_FIELD, 50, "high"),
        (Cause.CHANGING_FIELD, 49, "medium"),
        (Cause.CHANGING_FIELD, 10, "medium"),
        (Cause.CHANGING_FIELD, 9, "low"),
        (Cause.COMPACTION, 100, "low"),
        (Cause.HINTS_LOST, 0, "medium"),
    ],
)
def test_severity_goes_by_the_share_that_is_lost(cause: Cause, lost: int, severity: str) -> None:
    assert severity_of(cause, lost, 100).value == severity


SECRETS = [
    "sk-abcdefghijklmnop1234",
    "Authorization: Bearer abc.def-ghi",
    "password=hunter2hunter2",
    "redis://me:topsecret@host/0",
    "ghp_0123456789abcdefghij",
    "A" * 10 + "b1" * 20,
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_not_echoed(secret: str, tmp_path: Path) -> None:
    told = secret.rsplit(" ", 1)[-1].rsplit("=", 1)[-1].partition("@")[0].rsplit(":", 1)[-1]
    assert told not in without_secrets(f"key: {secret} end")
    bodies = Agent(1).run(4)
    for turn, body in enumerate(bodies):
        head_of(body)["content"] = f"{secret} {turn}\n" + head_of(body)["content"]
    findings = examine(tmp_path, bodies).findings
    assert len(findings) == 3 and not any(told in each.evidence for each in findings)


def test_evidence_is_short_and_shows_the_difference() -> None:
    said = evidence("x " * 500 + "before it", "x " * 500 + "behind it " + "y" * 500)
    assert "before" in said and "behind" in said and len(said) < 150
