"""Lets agentkv's own endpoint plugin load for a user who has selected agentkv.

Symbol: `vllm.plugins.load_endpoint_plugins`, wrapped; `vllm.envs.VLLM_PLUGINS`, set while it runs.
Why: vLLM loads endpoint plugins only if VLLM_PLUGINS names them, and that is one allow-list
over all kinds of plugins. Set for the process, it would have to name the user's others too, and so
switch on what is opt-in by that very list: endpoint plugins of the same names, and vLLM's
`lora_hf_hub_resolver`, which downloads. So the variable stays unset, in this process, in those
started by it and for every other kind of plugin; only this one loader sees one name.
Where: called by `engine_config` in the process that goes on to build the app. A VLLM_PLUGINS that
the user has set stands as it is.
Delete when: vLLM lets a KV connector bring its routes along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import vllm.envs
import vllm.plugins

from agentkv.symbols import Symbol

PLUGIN_NAME = "agentkv"
VARIABLE = "VLLM_PLUGINS"

SYMBOLS = (
    Symbol("vllm.plugins:load_endpoint_plugins", ("supported_tasks",), mentions=(VARIABLE,)),
    Symbol("vllm.plugins:load_plugins_by_group", ("group",), mentions=(VARIABLE,)),
)


def let_through() -> None:
    """Wrap the loader, once."""
    original: Callable[..., Any] = vllm.plugins.load_endpoint_plugins
    if getattr(original, "_is_agentkv", False):
        return

    @functools.wraps(original)
    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> Any:
        if vllm.envs.VLLM_PLUGINS is not None:
            return original(*args, **kwargs)
        # An attribute, where vLLM has a function that reads the environment: it is found first.
        vars(vllm.envs)[VARIABLE] = [PLUGIN_NAME]
        try:
            return original(*args, **kwargs)
        finally:
            del vars(vllm.envs)[VARIABLE]

    load_endpoint_plugins._is_agentkv = True  # type: ignore[attr-defined]
    vllm.plugins.load_endpoint_plugins = load_endpoint_plugins
