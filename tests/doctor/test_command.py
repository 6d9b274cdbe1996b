"""`agentkv doctor`: what it prints and writes, and the status it ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentkv.cli.main import build_app
from agentkv.doctor import install
from agentkv.doctor.checks import Check, fail, ok, warn
from agentkv.errors import ConfigError
from tests.doctor import faults
from tests.doctor.builders import Agent, named, write_log


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["doctor", *map(str, arguments)])


@pytest.fixture
def sick_log(tmp_path: Path) -> Path:
    entries = [*named(faults.clock(1), "run-1"), *named(faults.tool_gone(2), "run-2"), {"x": 1}]
    return write_log(tmp_path / "sick.jsonl", entries)


def test_a_sick_log_ends_with_1_and_says_where_what_and_how_to_mend_it(sick_log: Path) -> None:
    result = run(sick_log)
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "16 requests in 2 sessions; 14 go on from an earlier request" in text
    for said in (
        "A field near the head changes from turn to turn · changing_field session run-1",
        "turns 2-8 (7)",
        "where system prompt, line 1",
        "a date or time: ",
        "Tools were added or removed · tool_set session run-2",
        "Move what changes behind the conversation",
        "line 17: no request body in it",
        "Tokens are estimated",
    ):
        assert said in text
    assert text.index("changing_field") < text.index("tool_set")  # the dearer one first
    assert "price" not in text


def test_a_healthy_log_ends_with_0(tmp_path: Path) -> None:
    result = run(write_log(tmp_path / "log.jsonl", Agent(1).run(5)))
    assert result.exit_code == 0 and "Nothing breaks the prefix." in result.output


def test_json_has_everything_and_a_price_if_one_is_given(sick_log: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = run(sick_log, "--price-per-million", 2, "--json", file)
    assert result.exit_code == 1 and ", price 0.0" in result.output
    written = json.loads(file.read_text())
    assert written == json.loads(run(sick_log, "--price-per-million", 2, "--json", "-").output)
    assert written["cost"] == pytest.approx(written["tokens_lost"] * 2e-6)
    first = written["findings"][0]
    assert first["class"] == "changing_field" and first["session"] == "run-1"
    assert {"severity", "turn", "line", "where", "tokens_lost", "fix", "evidence"} <= set(first)
    assert written["not_understood"] == [
        {"line": 17, "reason": "no request body in it (messages, input or prompt)"}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["LOG", "--install"], "LOG stands alone"),
        (["LOG", "--url", "http://x"], "LOG stands alone"),
        (["--template", "x"], "are for a LOG"),
        (["--price-per-million", "1"], "are for a LOG"),
        (["LOG", "--template", "/none"], "no such file or directory"),
        (["/none.jsonl"], "cannot be read"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    arguments: list[str], message: str, sick_log: Path
) -> None:
    result = run(*(sick_log if each == "LOG" else each for each in arguments))
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_file_without_requests_is_no_healthy_log(tmp_path: Path) -> None:
    log = tmp_path / "x.jsonl"
    log.write_text("# hello\n")
    result = run(log)
    assert "holds no request (line 1: not JSON)" in str(result.exception)


@pytest.mark.parametrize(
    ("check", "status"),
    [(ok("a", "fine"), 0), (warn("a", "so", "b"), 0), (fail("a", "no", "b"), 1)],
)
def test_checks_are_printed_with_how_to_mend_and_fail_the_command(
    check: Check, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "install_checks", lambda config: iter([check]))
    result = run()
    assert result.exit_code == status
    assert check.said in result.output and ("→ b" in result.output) == bool(check.mend)
    assert json.loads(run("--json", "-").output)["checks"][0]["state"] == check.state.value
