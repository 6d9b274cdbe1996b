"""A Redis of our own, on this machine, for a demo or a measurement."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentkv.errors import AgentKVError

NOT_INSTALLED = "redis-server is not installed"
_READY_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0


def redis_program() -> str | None:
    """None if it is not installed."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


@contextmanager
def private_redis(program: str, folder: Path) -> Iterator[str]:
    """Its URL. Only this machine reaches it, and it writes no data to the disk.

    Raises AgentKVError if it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        [program, *options],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_it_listens(process, port)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AgentKVError("redis-server does not start on this machine")
