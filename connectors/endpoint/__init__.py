"""agentkv.connectors.endpoint: agentkv in the API process.

What: the `vllm.endpoint_plugins` entry point `Plugin`: routes under /v1/agentkv, a watcher of the
replies that pass, the engine's clock, and the live page. Why: the engine core never sees a tool
call, and blocks without a time-out while it is idle. Where: loaded by vLLM's API server only; an
offline `LLM` loads none of it, which is why `Plugin` is imported when it is asked for and not
before.

              page, in front of vLLM's key check
    plugin ─► routes ─────┐
       └────► middleware ─┴─► engine_link ══ control message ══► engine
              ticker ◄── mailbox ◄══ reply in the statistics ══════┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plugin import Plugin

__all__ = ["Plugin"]


def __getattr__(name: str) -> Any:
    if name == "Plugin":
        from .plugin import Plugin

        return Plugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
