"""A real HTTP server that says what it was told to, at a port that outlives it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from agentkv.connectors.endpoint.models import Session

from . import answers


@dataclass
class FakeServer:
    """`has_live`: whether it has the newer route. `status`: of all under /v1, if not 200."""

    sessions: list[Session] = field(default_factory=lambda: [answers.paused()])
    told: BaseModel = field(default_factory=answers.state)
    metrics: str = answers.METRICS
    has_live: bool = True
    key: str | None = None
    status: int = 200
    message: str = "no"
    age_s: float = 0.0
    seen: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0
    _http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """At the port it had before, if it had one."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.seen.append(self.path)
                fake.headers.append(dict(self.headers))
                status, kind, body = fake.answer(self.path, self.headers.get("Authorization"))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def finish_request(self, request: Any, address: Any) -> None:
                fake._open.append(request)
                super().finish_request(request, address)

        self._open: list[Any] = []
        self._http = Server(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Connections that are open break off, as with a process that is gone."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def answer(self, path: str, authorization: str | None) -> tuple[int, str, bytes]:
        path = urlsplit(path).path
        if path == "/metrics":
            return 200, "text/plain", self.metrics.encode()
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, "application/json", b'{"error": "Unauthorized"}'
        if self.status != 200:
            return self._error(self.status, self.message)
        found = self._found(path)
        if found is None:
            return self._error(404, "Not Found")
        return 200, "application/json", found.model_dump_json().encode()

    def _found(self, path: str) -> BaseModel | None:
        api = path.removeprefix("/v1/agentkv/")
        if api == "live" and self.has_live:
            return answers.live(self.sessions, self.told, self.age_s)  # type: ignore[arg-type]
        if api == "state":
            return self.told
        if api == "sessions":
            return answers.listed(self.sessions)
        kind, _, name = api.partition("/")
        session = next((s for s in self.sessions if s.session_id == unquote(name)), None)
        if session is None:
            return None
        if kind == "ledger":
            return answers.ledger(session.session_id)
        return session.model_copy(update={"kv_tokens": {"gpu": 3_000, "dram": 4_000}})

    def _error(self, status: int, message: str) -> tuple[int, str, bytes]:
        error = {"error": {"message": message, "type": "x", "param": None, "code": status}}
        return status, "application/json", json.dumps(error).encode()


@contextmanager
def running(server: FakeServer | None = None) -> Iterator[FakeServer]:
    """Started, and stopped at the end."""
    server = server or FakeServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
