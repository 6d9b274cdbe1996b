"""agentkv: a vLLM plugin that makes an agent's tool-call pauses cheap.

What: the engine-free core. When a turn ends in a tool call, its KV is held, swapped or recomputed.
Why: the core decides with plain values, so the same code runs inside vLLM and in tests without it.
Where: `agentkv.patches` hooks it into vLLM, `agentkv.connectors` carries the decisions out there.
"""

from agentkv._version import __version__
from agentkv.config import AgentKVConfig, parse_config
from agentkv.errors import AgentKVError, ConfigError, UnsupportedVllmError

__all__ = [
    "AgentKVConfig",
    "AgentKVError",
    "ConfigError",
    "UnsupportedVllmError",
    "__version__",
    "parse_config",
]
