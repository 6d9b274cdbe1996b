"""The entry point of vLLM's API server: routes, watcher and clock, put together.

What: an `EndpointPlugin` in vLLM's sense. Why: it is the official way to add routes, and the only
one that gets the engine client. Where: vLLM calls `attach_router` while it builds the app, before
it adds its own middleware, and `init_state` when the engine is up. Switched on by
`agentkv.patches.endpoint_plugins` for those who select agentkv, or by VLLM_PLUGINS.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastapi import FastAPI
from vllm.logger import init_logger

from agentkv.clock import SystemClock

from . import mailbox
from .engine_link import EngineLink, Engines
from .mailbox import Mailbox
from .middleware import AgentKVMiddleware
from .ownership import Callers
from .page import PageMiddleware, read_files
from .routes import router
from .state import Endpoint
from .tiers import Tiers, tier_sizes

logger = init_logger("vllm.agentkv")

CONNECTORS = ("agentkv", "AgentKVConnector")


class Plugin:
    """One per app; see `vllm.plugins.endpoint_plugins.interface.EndpointPlugin`."""

    name = "agentkv"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._app: FastAPI | None = None
        self._endpoint: Endpoint | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes and the middleware; vLLM's own comes around it."""
        self._app = app
        args = getattr(app.state, "args", None)
        self._endpoint = Endpoint(callers=Callers(_num_keys(args)))
        app.state.agentkv = self._endpoint
        app.include_router(router)
        app.add_middleware(AgentKVMiddleware, endpoint=self._endpoint)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Connect to the engine, if it runs with agentkv; else nothing is watched."""
        if self._app is None or self._endpoint is None:
            return
        # Around the stack as it is now: vLLM has built it, so that none can be added.
        stack = self._app.middleware_stack or self._app.build_middleware_stack()
        self._app.middleware_stack = PageMiddleware(stack, read_files())
        if not _is_in_use(engine_client):
            return
        box = Mailbox()
        self._endpoint.link = EngineLink(
            engine_client,
            _engines_of(engine_client.vllm_config.parallel_config),
            box,
            self._endpoint.counters,
            SystemClock(),
        )
        extra = _our_extra(engine_client.vllm_config.kv_transfer_config)
        self._endpoint.tiers = Tiers(tier_sizes(extra))
        mailbox.activate(box)
        if (getattr(args, "api_server_count", None) or 1) > 1 and _num_keys(args) > 1:
            logger.warning(
                "agentkv: with several API keys and several API processes, a process takes events "
                "only about sessions that it served itself; others look unknown to it"
            )


def _num_keys(args: Namespace | None) -> int:
    """As many as vLLM takes; VLLM_API_KEY can only be one."""
    return len({key for key in getattr(args, "api_key", None) or () if key})


def _is_in_use(engine_client: Any) -> bool:
    if engine_client is None:
        return False
    transfer = engine_client.vllm_config.kv_transfer_config
    # Also as a part of a MultiConnector.
    return transfer is not None and any(transfer.has_connector(name) for name in CONNECTORS)


def _our_extra(transfer: Any) -> dict[str, Any]:
    """agentkv's own settings."""
    extra = transfer.kv_connector_extra_config or {}
    if transfer.kv_connector in CONNECTORS:
        return dict(extra)
    parts = (part for part in extra["connectors"] if part.get("kv_connector") in CONNECTORS)
    return dict(next(parts).get("kv_connector_extra_config") or {})


def _engines_of(parallel: Any) -> Engines:
    """As vLLM's client counts its engines (`core_client.py: engine_ranks_managed`)."""
    if parallel.local_engines_only:
        return Engines(parallel.data_parallel_size_local, parallel.data_parallel_index)
    return Engines(parallel.data_parallel_size, parallel.data_parallel_index)
