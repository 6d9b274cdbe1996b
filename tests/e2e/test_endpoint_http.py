"""The endpoint plugin in a real server: events, sessions, tenants, and pauses nobody announced.

The model's weights are random, so its tool calls are forced, as in the demo's.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from agentkv.cli.main import build_app
from agentkv.demo.forced_answers import END_TEXT, SERVER_ARGS, ForcedCall, ForcedEnd
from agentkv.doctor import live
from tests.endpoint.ui_kit import browsing_sync

from .server import API_SERVER, Server, serving

MESSAGES = [
    {"role": "system", "content": "call the tool and run the tests again " * 4},
    {"role": "user", "content": "run the tests"},
]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
COMMAND = "run the tests"
FORCED = {**ForcedCall("bash", COMMAND).fields(), "temperature": 0}
SCHEMA = FORCED["tools"][0]["function"]["parameters"]
OTHER_KEY = {"Authorization": "Bearer key-b"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("endpoint")


@pytest.fixture(scope="module")
def server(model: Path, engine_lock: None, folder: Path) -> Iterator[Server]:
    config = folder / "agentkv.yaml"
    config.write_text(f"dram: {{size_bytes: 16MiB}}\nledger: {{path: {folder}/ledger.jsonl}}\n")
    flags = ("--model", str(model), "--kv-connector", "agentkv", "--agentkv-config", str(config))
    keys = ("--api-key", "key-a", "key-b")
    with serving((*API_SERVER, *flags, *keys, *SERVER_ARGS), folder / "server.log") as server:
        server.client.headers["Authorization"] = "Bearer key-a"
        yield server


def chat(server: Server, session: str | None, **body: Any) -> dict[str, Any]:
    headers = {} if session is None else {"X-Session-ID": session}
    return server.post("/v1/chat/completions", {"messages": MESSAGES, **GREEDY, **body}, **headers)


def event(server: Server, kind: str, session: str, **fields: Any) -> dict[str, Any]:
    body = {"event": kind, "session_id": session, **fields}
    response = server.client.post("/v1/agentkv/events", json=body)
    response.raise_for_status()
    result: dict[str, Any] = response.json()
    return result


def session(server: Server, name: str) -> dict[str, Any]:
    response = server.client.get(f"/v1/agentkv/sessions/{name}")
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


def counters(server: Server) -> dict[str, int]:
    response = server.client.get("/v1/agentkv/state")
    response.raise_for_status()
    found: dict[str, int] = response.json()["endpoint"]
    return found


def until(holds: Callable[[], bool]) -> None:
    """Waits for what happens beside the requests."""
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def ledger(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["session_id"] == name]


def test_a_pause_is_announced_seen_and_ended(server: Server, folder: Path) -> None:
    chat(server, "told")
    result = event(server, "pause", "told", tool="bash", command="pytest -q", expected_wait_s=7)
    assert result["status"] == "accepted"
    found = session(server, "told")
    assert (found["state"], found["pause"]["tool"]) == ("paused", "bash")
    assert found["pause"]["expected_wait_s"] == 7
    listed = server.client.get("/v1/agentkv/sessions").json()["sessions"]
    assert "told" in [each["session_id"] for each in listed]
    assert event(server, "resume", "told")["status"] == "accepted"
    assert event(server, "end", "told")["status"] == "accepted"
    assert ledger(folder, "told")[-1]["kind"] == "end"


def test_events_are_ordered_by_their_number(server: Server) -> None:
    chat(server, "numbered")
    assert event(server, "pause", "numbered", tool="a", seq=5)["status"] == "accepted"
    assert event(server, "pause", "numbered", tool="b", seq=4)["status"] == "rejected"
    assert session(server, "numbered")["pause"]["tool"] == "a"


def test_a_batch_is_answered_one_by_one(server: Server) -> None:
    chat(server, "batched")
    events = [{"event": "heartbeat", "session_id": name} for name in ("batched", "nobody")]
    results = server.client.post("/v1/agentkv/events", json={"events": events}).json()["results"]
    assert [result["status"] for result in results] == ["accepted", "unknown"]


def test_a_tool_call_in_a_reply_is_a_pause_with_its_tool(server: Server, folder: Path) -> None:
    before = counters(server)
    answer = chat(server, "watched", **FORCED, ignore_eos=False)
    (made,) = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"command": COMMAND}
    until(lambda: session(server, "watched")["pause"]["tool"] == "bash")
    after = counters(server)
    assert after["turns_tool"] == before["turns_tool"] + 1
    assert after["pauses_sent"] == before["pauses_sent"] + 1


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool_call_is_seen_through_the_openai_client(
    server: Server, folder: Path, is_streamed: bool
) -> None:
    from openai import OpenAI

    name = f"openai-{is_streamed}"
    client = OpenAI(base_url=f"{server.client.base_url}/v1", api_key="key-a", max_retries=0)
    ask: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, **FORCED}
    with client:
        answer = client.chat.completions.create(
            **ask, stream=is_streamed, extra_headers={"X-Session-ID": name}
        )
        if is_streamed:
            said = [chunk.choices[0].delta for chunk in answer if chunk.choices]
        else:
            said = [answer.choices[0].message]
    made = [each for piece in said for each in piece.tool_calls or ()]
    arguments = "".join(piece.function.arguments or "" for piece in made if piece.function)
    assert json.loads(arguments) == {"command": COMMAND}
    until(lambda: session(server, name)["pause"]["tool"] == "bash")
    chat(server, name)
    (resume,) = [record for record in ledger(folder, name) if record["kind"] == "resume"]
    assert resume["tool"] == "bash" and resume["command_class"], "the command came, too"


def test_an_answer_without_a_call_though_it_had_a_tool_waits_for_a_human(server: Server) -> None:
    answer = chat(server, "finished", **ForcedEnd("bash").fields(), ignore_eos=False)
    assert answer["choices"][0]["message"]["content"] == f'"{END_TEXT}"'
    until(lambda: session(server, "finished")["pause"]["tool"] == "human")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_function_call_is_seen_through_the_responses_api(
    server: Server, is_streamed: bool
) -> None:
    from openai import OpenAI

    name = f"responses-{is_streamed}"
    client = OpenAI(base_url=f"{server.client.base_url}/v1", api_key="key-a", max_retries=0)
    ask: dict[str, Any] = {
        "model": "tiny",
        "input": "run the tests again " * 16,
        "temperature": 0,
        "max_output_tokens": 400,
        "tools": [{"type": "function", "name": "bash", "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "bash"},
        "store": False,
    }
    with client:
        answer = client.responses.create(
            **ask, stream=is_streamed, extra_headers={"X-Session-ID": name}
        )
        if is_streamed:
            (answer,) = [each.response for each in answer if each.type == "response.completed"]
    (made,) = [item for item in answer.output if item.type == "function_call"]
    assert (made.name, json.loads(made.arguments)) == ("bash", {"command": COMMAND})
    until(lambda: session(server, name)["pause"]["tool"] == "bash")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_tool_use_is_seen_through_the_anthropic_client(server: Server, is_streamed: bool) -> None:
    anthropic = pytest.importorskip("anthropic")
    name = f"anthropic-{is_streamed}"
    client = anthropic.Anthropic(
        base_url=str(server.client.base_url), auth_token="key-a", max_retries=0
    )
    with client:
        ask = {
            "model": "tiny",
            "max_tokens": 400,
            "extra_body": {"temperature": 0},
            "messages": MESSAGES[1:],
            "tools": [{"name": "bash", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "bash"},
            "extra_headers": {"x-claude-code-session-id": name},
        }
        if is_streamed:
            with client.messages.stream(**ask) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**ask)
    (used,) = [block for block in message.content if block.type == "tool_use"]
    assert (used.name, used.input) == ("bash", {"command": COMMAND})
    until(lambda: session(server, name)["pause"]["tool"] == "bash")


def test_a_client_that_names_no_session_is_paused_by_the_id_of_its_reply(server: Server) -> None:
    answer = chat(server, None, **FORCED, ignore_eos=False)
    body = {"event": "pause", "request_id": answer["id"], "tool": "pytest"}
    response = server.client.post("/v1/agentkv/events", json=body)
    assert response.json()["status"] == "accepted"


def test_to_another_key_a_session_looks_like_none(server: Server) -> None:
    chat(server, "mine")
    ask = server.client.get
    foreign, unknown = (
        ask(f"/v1/agentkv/sessions/{name}", headers=OTHER_KEY) for name in ("mine", "nobody")
    )
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.content == unknown.content
    results = [
        server.client.post(
            "/v1/agentkv/events", json={"event": "end", "session_id": name}, headers=OTHER_KEY
        ).json()
        for name in ("mine", "nobody")
    ]
    assert results[0] == results[1] and results[0]["status"] == "unknown"
    assert ask("/v1/agentkv/sessions", headers=OTHER_KEY).json() == {"sessions": []}
    assert session(server, "mine")["state"] == "paused"


def test_a_cache_salt_parts_sessions_of_one_name(server: Server) -> None:
    chat(server, "salted", cache_salt="red")
    assert event(server, "heartbeat", "salted")["status"] == "unknown"
    assert event(server, "heartbeat", "salted", cache_salt="red")["status"] == "accepted"
    response = server.client.get("/v1/agentkv/sessions/salted", headers={"X-Cache-Salt": "red"})
    assert response.json()["session_id"] == "salted"


def test_a_wrong_event_is_refused_with_the_field(server: Server) -> None:
    body = {"event": "pause", "session_id": "s", "expected_wait_s": -1}
    response = server.client.post("/v1/agentkv/events", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "body.expected_wait_s"
    assert httpx.get(f"{server.client.base_url}/v1/agentkv/state").status_code == 401


@pytest.mark.parametrize(
    ("key", "status", "said"), [("key-a", 0, "agentkv answers, 1 engine"), ("no", 1, "API key")]
)
def test_the_doctor_needs_a_key_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, key: str, status: int, said: str
) -> None:
    monkeypatch.setattr(live, "_BETWEEN_S", 0.0)
    url = str(server.client.base_url)
    done = CliRunner().invoke(build_app(), ["doctor", "--url", url, "--api-key", key])
    assert (done.exit_code, said in done.stdout) == (status, True), done.stdout


def test_the_page_shows_what_a_real_server_does(server: Server) -> None:
    chat(server, "seen")
    event(server, "pause", "seen", tool="bash", command="pytest -q", expected_wait_s=500)
    with browsing_sync() as browser:
        page = browser.new_page()
        page.goto(f"{server.client.base_url}/v1/agentkv/ui")
        page.get_by_label("API key").fill("key-a")
        page.keyboard.press("Enter")
        lane = page.locator("#lanes > li", has=page.get_by_role("heading", name="seen", exact=True))
        expect(lane).to_contain_text("bash · ")
        expect(page.locator("#pool-note")).to_have_text("0 of 64 blocks")
        expect(page.locator("#tier-dram-note")).to_have_text("of 16 MiB")
        lane.get_by_role("button", name="bash, paused at").click()
        expect(page.get_by_role("dialog", name="bash · seen")).to_contain_text("hold")
        page.keyboard.press("Escape")
        event(server, "end", "seen")
        expect(lane).to_contain_text("ended at")


SALTS = (None, "red")  # All that the tests of this file use.


def test_an_engine_without_sessions_is_left_alone(server: Server) -> None:
    for salt in SALTS:
        headers = {} if salt is None else {"X-Cache-Salt": salt}
        fields = {} if salt is None else {"cache_salt": salt}
        for each in server.client.get("/v1/agentkv/sessions", headers=headers).json()["sessions"]:
            event(server, "end", each["session_id"], **fields)
    before = counters(server)
    time.sleep(1.5)
    after = counters(server)
    assert after["ticks_sent"] == before["ticks_sent"]
    assert after["problems"] == 0
