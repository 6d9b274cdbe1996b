"""Waits until a program that was started answers over HTTP."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx

_READY_TIMEOUT_S = 180.0


def wait_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until GET /health is answered well. Fails with the end of its log where it never is."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(httpx.HTTPError):
            if client.get("/health").is_success:
                return
        time.sleep(0.05)
    raise AssertionError(f"{process.args!r} did not start:\n{log.read_text()[-2000:]}")
