"""`agentkv top` without a terminal: a picture, JSON, a drawing; one line for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentkv.cli.top import top
from agentkv.errors import AgentKVError, ConfigError

from .answers import many, paused
from .fake_server import FakeServer

Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command; errors are in the result."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(top)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.parametrize("flags", [["--once"], []])
def test_where_there_is_no_terminal_one_picture_is_printed(
    run: Run, server: FakeServer, flags: list[str]
) -> None:
    server.sessions = many(60)
    lines = run(server.url, *flags).stdout.splitlines()
    assert sum(line.startswith("agent-") for line in lines) == 60
    assert max(len(line) for line in lines) <= 100 and "\x1b" not in "".join(lines)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_an_output_that_knows_few_letters_gets_others_for_them(
    server: FakeServer, encoding: str
) -> None:
    server.sessions = [paused("agent-é"), paused("агент")]
    done = subprocess.run(
        [sys.executable, "-c", "from agentkv.cli.main import main; main()", "top", server.url],
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    text = done.stdout.decode(encoding)
    assert done.returncode == 0 and not done.stderr, done.stderr
    full, at_most = ("█", "≤") if encoding == "utf-8" else ("#", "<")
    assert f"pool {full}" in text and f"gpu {at_most}10 ms" in text
    assert {"latin-1": "agent-é", "ascii": "agent-?", "utf-8": "агент"}[encoding] in text


def test_json_is_what_the_server_says(run: Run, server: FakeServer) -> None:
    server.sessions = [paused("\x1b[31mred")]
    output = run(server.url, "--json").stdout
    value = json.loads(output)
    assert "\x1b" not in output and value["sessions"][0]["session_id"] == "\x1b[31mred"
    assert value["state"]["engines"][0]["pool_blocks"] == 100
    assert {"labels": {"engine": "0", "action": "hold"}, "value": 1204.0} in value["metrics"][
        "agentkv:decisions_total"
    ]


def test_the_drawing_stands_alone(run: Run, server: FakeServer, tmp_path: Path) -> None:
    server.sessions = [*many(60), paused("<script>&\x1b[31m")]
    path = tmp_path / "top.svg"
    assert run(server.url, "--once", "--svg", path).exception is None
    text = path.read_text(encoding="utf-8")
    letters = "".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    assert "engine 0" in letters and "agent-" in letters and "and 31 more" in letters
    assert "url(http" not in text and "font-face" not in text
    error = run(server.url, "--svg", tmp_path / "none" / "x.svg").exception
    assert isinstance(error, ConfigError) and "No such file" in str(error)


def test_the_key_comes_from_the_environment(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "secret"
    error = run(server.url, "--once").exception
    assert isinstance(error, AgentKVError) and "--api-key or VLLM_API_KEY" in str(error)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert "run-1" in run(server.url, "--once").stdout
    assert "run-1" in run(server.url, "--json", "--salt", "s").stdout
    assert server.headers[-1]["X-Cache-Salt"] == "s"


def test_an_error_is_one_line_and_status_2() -> None:
    code = "from agentkv.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "top", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and "is the server up" in done.stderr
