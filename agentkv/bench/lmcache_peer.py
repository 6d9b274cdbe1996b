"""LMCache's Redis client as a peer of the Redis tier, where LMCache is installed.

What: the client behind its `resp://` connector, called with whole batches, as that connector does.
Found by name, so that nothing of it is needed elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis

from agentkv.bench.memory import BlockMemory
from agentkv.bench.rounds import PeerError
from agentkv.tiers.redis.url import Address, RedisAccess

LMCACHE = "lmcache"
_CLIENT_MODULE = "lmcache.v1.storage_backend.native_clients.resp_client"
_TIMEOUT_S = 120.0


def why_no_lmcache(address: Address) -> str | None:
    """None if it can be measured."""
    if address.kind != "single" or address.db:
        return "LMCache's client knows database 0 of a TCP server only"
    if importlib.util.find_spec(LMCACHE) is None:
        return "LMCache is not installed"
    try:
        module = importlib.import_module(_CLIENT_MODULE)
    except ImportError as error:
        return f"LMCache cannot be loaded: {error}"
    if not getattr(module, "REDIS_AVAILABLE", False):
        return "LMCache is installed without its Redis client"
    return None


class LmcacheClient:
    """See `Mover`. Keeps an event loop of its own in a thread, as LMCache does."""

    name = LMCACHE

    def __init__(
        self,
        address: Address,
        access: RedisAccess,
        source: BlockMemory,
        target: BlockMemory,
        *,
        num_threads: int,
        prefix: str,
    ) -> None:
        self._source, self._target = source, target
        self._num_threads = num_threads
        self._keys = [f"{prefix}:lmcache:{i}" for i in range(source.num_blocks)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bench-lmcache")
        self._thread.start()
        self._server = redis.Redis(
            *address.hosts[0], username=access.username, password=access.password
        )
        self._client: Any = None
        try:
            self._client = self._wait(self._connect(address, access))
        except PeerError:
            self.close()
            raise

    def store(self) -> float:
        with contextlib.suppress(
            redis.RedisError
        ):  # As the others: not over values that are there.
            self._server.unlink(*self._keys)
        return self._timed(self._client.batch_set, self._source)

    def load(self) -> float:
        self._target.wipe()
        seconds = self._timed(self._client.batch_get, self._target)
        if not self._target.equals(self._source):
            raise PeerError("LMCache's client gave other bytes back")
        return seconds

    def facts(self) -> Mapping[str, Any]:
        return {"connections": self._num_threads, "value_bytes": [self._source.block_bytes]}

    def close(self) -> None:
        if self._thread.is_alive():
            if self._client is not None:
                self._client.close()
            with contextlib.suppress(redis.RedisError):
                self._server.unlink(*self._keys)
            self._server.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _timed(
        self, move: Callable[[Sequence[str], Sequence[memoryview]], Any], memory: BlockMemory
    ) -> float:
        views = memory.views()
        began_s = time.perf_counter()
        self._wait(move(self._keys, views))
        return time.perf_counter() - began_s

    async def _connect(self, address: Address, access: RedisAccess) -> Any:
        host, port = address.hosts[0]
        login = (access.username or "", access.password or "")
        module = importlib.import_module(_CLIENT_MODULE)
        return module.RESPClient(host, port, self._num_threads, self._loop, *login)

    def _wait(self, call: Any) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(_TIMEOUT_S)
        except (RuntimeError, OSError, TimeoutError) as error:
            raise PeerError(f"LMCache's client failed: {type(error).__name__}") from None
