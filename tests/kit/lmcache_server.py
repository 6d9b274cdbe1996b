"""LMCache's own server in a process of its own, and stores on it.

It needs an interpreter with LMCache: this one, or that of AGENTKV_LMCACHE_PYTHON. LMCache itself is
never imported here.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit import frozen
from kit.ports import free_port

from agentkv.tiers.base import Entry
from agentkv.tiers.lmcache.store import LMCacheStore
from agentkv.tiers.namespace import Namespace

BLOCK_BYTES = 20_000
START_TIMEOUT_S = 180.0  # it imports torch
# LMCache's server, but for one option: without it, it cannot come back to its port for a minute.
SERVE = """
import socket, sys
from lmcache.v1.server import __main__ as server
class Socket(socket.socket):
    def bind(self, address):
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().bind(address)
server.socket.socket = Socket
server.main()
"""


def lmcache_python() -> str:
    """An interpreter that can run LMCache's server; a test fails without one."""
    if given := os.environ.get("AGENTKV_LMCACHE_PYTHON"):
        return given
    if importlib.util.find_spec("lmcache") is None:
        pytest.fail(
            "needs LMCache: `bash ci/setup.sh` installs it, or name a Python that has it in "
            "AGENTKV_LMCACHE_PYTHON"
        )
    return sys.executable


class Server:
    """LMCache's server on a port of its own. `start` after `kill`: the same port, and empty."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self._log = log

    def start(self) -> None:
        command = [lmcache_python(), "-c", SERVE, "127.0.0.1", str(self.port), "cpu"]
        environment = os.environ | {"LMCACHE_TRACK_USAGE": "false", "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(f"the server did not start:\n{self._log.read_text()[-2000:]}")

    def freeze(self) -> None:
        frozen.freeze(self._process)

    def thaw(self) -> None:
        frozen.thaw(self._process)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def memory_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def own_namespace() -> Namespace:
    return Namespace({"test": os.urandom(8).hex()})


class Stores:
    """Makes stores, of one namespace unless told, and closes them at the end of a test."""

    def __init__(self) -> None:
        self.made: list[LMCacheStore] = []
        self._namespace = own_namespace()

    def __call__(self, server: Server, **options: Any) -> LMCacheStore:
        patience = {"timeout_s": 60.0, "call_timeout_s": 60.0}  # Who wants less says so.
        fixed = {"block_bytes": BLOCK_BYTES, "namespace": self._namespace}
        options = {**fixed, **patience, **options}
        self.made.append(LMCacheStore("127.0.0.1", server.port, **options))
        return self.made[-1]


def keys_of(count: int) -> list[bytes]:
    return [os.urandom(36) for _ in range(count)]


def filled(keys: list[bytes], num_bytes: int = BLOCK_BYTES) -> list[Entry]:
    return [Entry(key, memoryview(os.urandom(num_bytes))) for key in keys]


def blank(keys: list[bytes], num_bytes: int = BLOCK_BYTES) -> list[Entry]:
    return [Entry(key, memoryview(bytearray(num_bytes))) for key in keys]


def is_same(some: list[Entry], others: list[Entry]) -> bool:
    return all(a.data == b.data for a, b in zip(some, others, strict=True))
