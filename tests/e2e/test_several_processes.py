"""Two engines (data parallelism) behind two API processes, as vLLM starts them.

Each call opens a connection of its own: the kernel picks the API process.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.demo.forced_answers import SERVER_ARGS

from .server import Server, serving
from .test_endpoint_http import FORCED, MESSAGES

COMMAND = (sys.executable, str(Path(__file__).with_name("vllm_command.py")), "serve")
RANKS = {"zero": 0, "one": 1, "anywhere": None}


@pytest.fixture(scope="module")
def server(
    model: Path, engine_lock: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("several")
    config = folder / "agentkv.yaml"
    config.write_text("dram: {size_bytes: 16MiB}\n")
    flags = (str(model), "--kv-connector", "agentkv", "--agentkv-config", str(config))
    many = ("--data-parallel-size", "2", "--api-server-count", "2")
    with serving((*COMMAND, *flags, *many, *SERVER_ARGS), folder / "server.log") as server:
        for name, rank in RANKS.items():
            for _ in range(2):
                body = {"model": "tiny", "messages": MESSAGES, **FORCED}
                headers = {"X-Session-ID": name}
                call(server, "POST", "/v1/chat/completions", rank, json=body, headers=headers)
        yield server


def call(server: Server, method: str, path: str, rank: int | None = None, **kwargs: Any) -> Any:
    """The answer, asked for again while an engine takes too long."""
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    headers |= kwargs.pop("headers", {})
    deadline_s = time.monotonic() + 120
    while True:
        url = f"{server.client.base_url}{path}"
        response = httpx.request(method, url, headers=headers, timeout=300, **kwargs)
        if response.status_code != 503 or time.monotonic() > deadline_s:
            return response.raise_for_status().json()


def tell(server: Server, kind: str, session: str, rank: int | None = None, **fields: Any) -> str:
    body = {"event": kind, "session_id": session, **fields}
    status: str = call(server, "POST", "/v1/agentkv/events", rank, json=body)["status"]
    return status


def tool_of(server: Server, session: str) -> str | None:
    tool: str | None = call(server, "GET", f"/v1/agentkv/sessions/{session}")["pause"]["tool"]
    return tool


def until_tool(server: Server, session: str, tool: str) -> None:
    deadline_s = time.monotonic() + 120
    while tool_of(server, session) != tool:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_pause_reaches_the_engine_that_has_the_session_from_any_process(server: Server) -> None:
    for name in RANKS:
        until_tool(server, name, "bash")  # nobody said so: it was read in the reply
    for name, rank in RANKS.items():
        assert tell(server, "pause", name, rank, tool="make") in ("accepted", "deferred")
        until_tool(server, name, "make")


def test_everything_is_shown_and_nothing_claimed_that_was_not_done(server: Server) -> None:
    listed = call(server, "GET", "/v1/agentkv/sessions")["sessions"]
    assert {session["session_id"] for session in listed} == set(RANKS)
    engines = call(server, "GET", "/v1/agentkv/state")["engines"]
    assert [engine["rank"] for engine in engines] == [0, 1]
    assert all(engine["sessions"]["paused"] >= 1 for engine in engines)
    assert tell(server, "end", "zero", rank=1) in ("unknown", "deferred")
    assert tell(server, "end", "nobody") in ("unknown", "deferred")
    assert tool_of(server, "zero") is not None, "the wrong engine has ended nothing"
    for name in RANKS:
        assert tell(server, "end", name) in ("accepted", "deferred")
    deadline_s = time.monotonic() + 120
    while call(server, "GET", "/v1/agentkv/sessions")["sessions"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
