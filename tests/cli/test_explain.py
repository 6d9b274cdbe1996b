"""`agentkv explain`: what is printed of a ledger that a controller wrote, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from agentkv.cli import explain_source
from agentkv.cli.explain import explain
from agentkv.errors import ConfigError
from agentkv.events import TurnTag
from agentkv.ledger import Ledger
from tests.test_controller import BLOCK, World

Run = Callable[..., Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls the command at a width of 80; errors are in the result."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(explain)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Sessions "run-42", of three pauses, and "run-7", of one, as an engine writes them."""
    path = tmp_path / "ledger.jsonl"
    world = World()
    object.__setattr__(world.controller._deps, "ledger", Ledger(world.clock, path=path))
    world.turn("run-42", range(20), TurnTag(tool="bash", command="pytest -q"))
    world.clock.advance(3)
    tag = TurnTag(tool="bash", command="make", expected_wait_s=300)
    world.turn("run-42", range(24), tag, gpu=20 * BLOCK)
    world.clock.advance(5)
    world.press()
    assert world.victims()
    park = {"session_id": "run-42", "tier": "ssd", "num_blocks": 24, "is_whole": True}
    world.controller._deps.ledger.record("park", pause_id=2, **park)
    world.clock.advance(0.5)
    world.turn("run-42", range(28), TurnTag(tool="human"), dram=24 * BLOCK)
    world.turn("run-7", range(100, 105))
    world.controller.close()
    return path


def test_a_pause_is_told_from_prediction_to_regret(run: Run, ledger: Path) -> None:
    text = run("run-42", "--ledger", ledger).stdout
    assert re.search(r"^Session run-42: 3 pauses, 8\.5 s waited, regret \S+ m?s in 2 pauses", text)
    blocks = text.split("Pause after turn ")[1:]
    assert len(blocks) == 3
    calm, moved, last = blocks
    assert "bash (pytest/test)" in calm and "nobody waits for blocks" in calm
    assert "after 3 s with 320 from the GPU, 64 new tokens" in calm
    assert re.search(r"regret +none: it cost 0 s", calm)
    assert "bash (build/compile)" in moved and "from stated wait" in moved
    assert re.search(r"\+5 s +swap: .*break-even", moved)
    assert re.search(r"\+5 s +parked on ssd: 24 blocks", moved)
    assert "after 5.5 s with 384 from DRAM, 64 new tokens" in moved
    assert re.search(r"in hindsight +\S+ m?s +\[\S+ m?s\] +\S+ m?s", moved)
    assert "human" in last and re.search(r"returned +not yet", last)


def test_no_line_is_longer_than_the_screen(run: Run, ledger: Path) -> None:
    lines = run("run-42", "--ledger", ledger).stdout.splitlines()
    assert max(len(line) for line in lines) <= 80


def test_only_the_last_pauses(run: Run, ledger: Path) -> None:
    text = run("run-42", "--ledger", ledger, "--last", 1).stdout
    assert text.count("Pause after turn") == 1 and "human" in text


def test_the_json_file_has_all_and_the_output_stays_readable(
    run: Run, ledger: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    assert "Session run-42" in run("run-42", "--ledger", ledger, "--json", out).stdout
    value = json.loads(out.read_text())
    assert [len(pause["decisions"]) for pause in value["pauses"]] == [1, 2, 1]
    assert json.loads(run("run-42", "--ledger", ledger, "--json", "-").stdout) == value
    nowhere = tmp_path / "none" / "out.json"
    assert isinstance(run("run-42", "--ledger", ledger, "--json", nowhere).exception, ConfigError)


def test_an_unknown_session_is_told_which_there_are(run: Run, ledger: Path) -> None:
    error = str(run("run-43", "--ledger", ledger).exception)
    assert "knows no session 'run-43'" in error and "of 2, some are run-42, run-7" in error


def test_a_ledger_that_is_not_there_or_empty_says_how_to_get_one(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        error = run("s", "--ledger", path).exception
        assert isinstance(error, ConfigError) and "ledger.path" in str(error)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    error = run("s", "--ledger", empty).exception
    assert isinstance(error, ConfigError) and "it knows none" in str(error)


def test_broken_and_unfinished_lines_are_passed_over(run: Run, ledger: Path) -> None:
    with ledger.open("ab") as file:
        file.write(b'\xff"run-42"\n["run-42"]\n\n{"kind": "pause", "session_id": "run-42", "t": 1')
    assert run("run-42", "--ledger", ledger).stdout.count("Pause after turn") == 3


def test_ledgers_of_older_engines_are_told_as_far_as_they_go(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    pause = {"kind": "pause", "t": 1.0, "pause_id": 1, "session_id": "s", "turn": 0, "tool": None}
    pause |= {"action": "hold", "reason": "so", "kv_bytes": 5, "estimate_p50_s": 1.5, "costs_s": {}}
    resume = {"kind": "resume", "t": 2.0, "pause_id": 1, "session_id": "s", "wait_s": 1.0}
    lines = [pause, {**resume, "regret_s": 0.25}, {**resume, "pause_id": 9}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("s", "--ledger", path)
    assert result.exception is None
    assert "tool not known" in result.stdout and "0.25 s" in result.stdout
    assert "does not have any more" in result.stdout and "not known: the engine" in result.stdout


@pytest.mark.parametrize("name", ["агент 🤖", 'quo"te', "org/run 1", "[red]markup[/]"])
def test_any_name_is_found_and_shown(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger.jsonl"
    world = World()
    object.__setattr__(world.controller._deps, "ledger", Ledger(world.clock, path=path))
    world.turn(name, range(5), TurnTag(tool="[bold]t"))
    world.controller.close()
    result = run(name, "--ledger", path)
    assert f"Session {name}: 1 pause" in result.stdout and "[bold]t" in result.stdout


def test_a_tool_can_neither_steer_the_terminal_nor_break_the_markup(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.jsonl"
    world = World()
    object.__setattr__(world.controller._deps, "ledger", Ledger(world.clock, path=path))
    for _ in range(3):
        world.turn("s\x1b[2J", range(5), TurnTag(tool="a\x1b]0;t\x07b[/x]"))
        world.clock.advance(3)
    world.controller.close()
    result = run("s\x1b[2J", "--ledger", path)
    assert result.exception is None
    assert "Session s: 3 pauses" in result.stdout and "ab[/x]" in result.stdout
    assert "\x1b" not in result.stdout and "\x07" not in result.stdout
    assert "from ab[/x]" in result.stdout


# --- from a server ---


def answers(monkeypatch: pytest.MonkeyPatch, *replies: httpx.Response) -> list[httpx.Request]:
    """A server that gives these; the requests that came."""
    left, asked = list(replies), []

    def reply(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return left.pop(0)

    client = httpx.Client
    monkeypatch.setattr(
        explain_source.httpx,
        "Client",
        lambda **fields: client(**fields, transport=httpx.MockTransport(reply)),
    )
    return asked


def error(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "code": status}})


def test_a_running_server_is_asked_with_key_and_salt(
    run: Run, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [json.loads(line) for line in ledger.read_text().splitlines()]
    asked = answers(monkeypatch, httpx.Response(200, json={"records": records}))
    options = ("--url", "http://host:8000/v1/", "--api-key", "k", "--cache-salt", "red")
    assert "Session a/b.c: 4 pauses" in run("a/b.c", *options).stdout
    [request] = asked
    assert request.url.raw_path == b"/v1/agentkv/ledger/a%2Fb%2Ec?limit=200"
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["x-cache-salt"] == "red"


def test_without_any_option_a_server_on_this_machine_is_asked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, httpx.Response(200, json={"records": []}))
    monkeypatch.setenv("VLLM_API_KEY", "from-env")
    assert "Session s: 0 pauses" in run("s").stdout
    assert str(asked[0].url).startswith("http://localhost:8000/v1/agentkv/ledger/s")
    assert asked[0].headers["authorization"] == "Bearer from-env"


def test_a_session_that_the_server_does_not_know(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = httpx.Response(200, json={"sessions": [{"session_id": "t"}]})
    answers(monkeypatch, error(404, "No such session."), listed)
    message = str(run("s", "--url", "http://host").exception)
    assert "knows no session 's', or it is not yours" in message and "the only one is t" in message


@pytest.mark.parametrize(
    ("replies", "part"),
    [
        ([error(401, "Unauthorized")], "--api-key"),
        ([httpx.Response(401, json={"error": "Unauthorized"})], "401 Unauthorized"),
        ([error(503, "The engine did not answer in time.")], "did not answer in time"),
        ([httpx.Response(404, json={"detail": "Not Found"})] * 2, "does the server run with"),
        ([httpx.Response(200, content=b"<html>")], "no answer"),
        ([httpx.Response(502, content=b"<html>")], "502 Bad Gateway"),
        ([httpx.Response(404, content=b"[]")] * 2, "does the server run with"),
        ([httpx.Response(200, json={})], "no answer"),
    ],
)
def test_a_server_that_cannot_tell_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, replies: list[httpx.Response], part: str
) -> None:
    answers(monkeypatch, *replies)
    result = run("s", "--url", "http://host")
    assert isinstance(result.exception, ConfigError) and part in str(result.exception)


@pytest.mark.parametrize("url", ["http://localhost:1", "nonsense", "http://[", "ftp://host"])
def test_a_server_that_is_not_there_is_one_line(run: Run, url: str) -> None:
    result = run("s", "--url", url)
    assert isinstance(result.exception, ConfigError) and "--ledger FILE" in str(result.exception)


def test_two_sources_are_one_too_many(run: Run, ledger: Path) -> None:
    result = run("s", "--ledger", ledger, "--url", "http://host")
    assert isinstance(result.exception, ConfigError) and "exclude" in str(result.exception)
