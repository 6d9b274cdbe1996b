"""Dynamo's KV indexer, the part of its router that reads KV events, in a process of its own.

It needs an interpreter with ai-dynamo-runtime: this one, into which ci/setup.sh puts it, or that of
AGENTKV_DYNAMO_PYTHON. Without it a test fails: one that is skipped proves nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from kit.ready import wait_ready

_HEARD_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """Tokens of a prompt that a worker has: in its pool, there or in DRAM, there or on disk."""

    gpu: int = 0
    dram: int = 0
    disk: int = 0


class Indexer:
    """Worker 1 is the engine under test."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def query(self, tokens: Sequence[int]) -> Overlap:
        answer = self._client.post("/query", json={"token_ids": list(tokens), "model_name": "m"})
        found: dict[str, Any] = answer.raise_for_status().json()["instances"].get("1", {})
        return Overlap(found.get("gpu", 0), found.get("cpu", 0), found.get("disk", 0))

    def wait_for(self, tokens: Sequence[int], wanted: Overlap) -> None:
        """Events travel on their own."""
        deadline_s = time.monotonic() + _HEARD_TIMEOUT_S
        while (found := self.query(tokens)) != wanted and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert found == wanted


@contextmanager
def indexing(folder: Path, port: int, events: str, *, block_tokens: int) -> Iterator[Indexer]:
    """Listens to one engine's `events`."""
    python = os.environ.get("AGENTKV_DYNAMO_PYTHON") or sys.executable
    command = [python, "-m", "dynamo.indexer", "--block-size", str(block_tokens)]
    command += ["--port", str(port), "--workers", f"1={events}", "--model-name", "m"]
    log = folder / "indexer.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            wait_ready(client, process, log)
            yield Indexer(client)
    finally:
        process.kill()
        process.wait()
