"""The vLLM project's router in front of two servers that only say their names.

It needs vllm-router, as AGENTKV_VLLM_ROUTER. CI does not have it (see connectors/conftest.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from kit.ports import free_port
from kit.ready import wait_ready


class Router:
    """Placed by vllm-router's `kv_aware`; equal ones go to one of the servers, always the same."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.holder = self.other = ""

    def place(self, tokens: Sequence[int]) -> str:
        """The name of the server that gets this prompt."""
        body = {"model": "m", "prompt": list(tokens), "max_tokens": 1}
        answer = self._client.post("/v1/completions", json=body).raise_for_status().json()
        name: str = answer["choices"][0]["text"]
        return name

    def wait_for(self, tokens: Sequence[int], name: str, timeout_s: float = 60.0) -> None:
        """Events travel on their own."""
        deadline_s = time.monotonic() + timeout_s
        while (placed := self.place(tokens)) != name and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert placed == name


@contextmanager
def routing(folder: Path, events: Mapping[str, str], *, block_tokens: int) -> Iterator[Router]:
    """`events` of each server by its name. AGENTKV_VLLM_ROUTER names the program."""
    command = os.environ["AGENTKV_VLLM_ROUTER"]
    with ExitStack() as stack:
        urls = {name: stack.enter_context(_server(name)) for name in events}
        port = free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "kv_aware"]
        options += ["--prometheus-port", str(free_port())]
        options += ["--kv-event-block-size", str(block_tokens), "--kv-event-model", "m"]
        for name, url in urls.items():
            options += ["--kv-event-source", f"{url}={events[name]}"]
        log = folder / "router.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [command, "--worker-urls", *urls.values(), *options], stdout=output, stderr=output
            )
        stack.callback(process.wait)
        stack.callback(process.kill)
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10))
        wait_ready(client, process, log)
        yield Router(client)


@contextmanager
def _server(name: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            """Not to the test's output."""

        def do_GET(self) -> None:
            self._answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            choice = {"index": 0, "text": name, "finish_reason": "stop"}
            self._answer({"id": "x", "object": "text_completion", "choices": [choice]})

        def _answer(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
