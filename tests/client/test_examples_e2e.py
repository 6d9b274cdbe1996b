"""The examples as users run them, against a real server with agentkv and a model of random weights.

Such a model calls no tool by itself: the examples force the call, the server's grammar for it
leaves no room for anything else.
"""

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Before the module that starts servers is imported: it keeps the environment as it was.
os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
)

from e2e.server import API_SERVER, Server, serving

from agentkv.client import AgentSession
from agentkv.demo.checkpoint import ModelShape, write_checkpoint

from .recorder import wait_until

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
SHAPE = ModelShape(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=4096,
)
# xlam is a parser whose forced calls are plain JSON; that a random model fills with blanks unless
# told not to.
TOOL_FLAGS = (
    "--enable-auto-tool-choice",
    *("--tool-call-parser", "xlam"),
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What an example does: lines of its output that show a tool ran, and events."""

    tool_line: str
    num_tools: int
    num_events: int


EXPECTED = {
    "plain_openai.py": Expected(r"^bash: ", num_tools=2, num_events=5),
    "langgraph_agent.py": Expected(r"^tool: ", num_tools=2, num_events=6),
    "openai_agents_agent.py": Expected(r"^bash: ", num_tools=2, num_events=8),
}


@pytest.fixture(scope="module")
def one_engine() -> Iterator[None]:
    """At most one test run on a machine starts engines: they need all of its cores."""
    path = Path(tempfile.gettempdir()) / "engine.lock"
    open_files = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    if str(path) in open_files:  # This run holds it already.
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def server(one_engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("examples")
    write_checkpoint(folder / "model", ["run the tests again"] * 10, seed=0, shape=SHAPE)
    config = folder / "agentkv.yaml"
    config.write_text(f"dram: {{size_bytes: 16MiB}}\nledger: {{path: {folder}/ledger.jsonl}}\n")
    flags = ("--model", str(folder / "model"), "--kv-connector", "agentkv")
    command = (*API_SERVER, *flags, "--agentkv-config", str(config), *TOOL_FLAGS)
    with serving(command, folder / "server.log") as server:
        yield server


def run(server: Server, example: str) -> str:
    command = [sys.executable, str(EXAMPLES / example), "--model", "tiny"]
    done = subprocess.run(
        [*command, "--base-url", f"{server.client.base_url}/v1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    return done.stdout


def events_received(server: Server) -> int:
    response = server.client.get("/v1/agentkv/state")
    response.raise_for_status()
    state: dict[str, Any] = response.json()
    count: int = state["endpoint"]["events_received"]
    return count


@pytest.mark.parametrize("example", EXPECTED)
def test_an_example_runs_to_its_end_and_its_tools_are_told(server: Server, example: str) -> None:
    expected = EXPECTED[example]
    before = events_received(server)
    output = run(server, example)
    assert len(re.findall(expected.tool_line, output, re.MULTILINE)) == expected.num_tools
    delivery = re.search(r"Delivery\(sent=(\d+), dropped=(\d+), problem=None\)", output)
    assert delivery is not None, output
    sent, dropped = int(delivery[1]), int(delivery[2])
    # On a busy machine a pause may be over before it can be told: then it is dropped, and counted.
    assert sent + dropped == expected.num_events
    assert dropped <= expected.num_tools
    assert events_received(server) == before + sent


def test_the_engine_knows_the_pause_while_the_tool_runs(server: Server) -> None:
    path = "/v1/agentkv/sessions/told"

    def tool_of_the_pause() -> str | None:
        pause = server.client.get(path).json()["pause"]
        return None if pause is None else pause["tool"]

    with AgentSession(str(server.client.base_url), session_id="told") as session:
        messages = [{"role": "user", "content": "run the tests again " * 20}]
        server.post(
            "/v1/chat/completions", {"messages": messages, "max_tokens": 4}, **session.headers
        )
        with session.tool("make", command="make all"):
            wait_until(lambda: tool_of_the_pause() == "make")
        assert server.client.get(path).json()["state"] == "paused"
    wait_until(lambda: server.client.get(path).status_code == 404)
