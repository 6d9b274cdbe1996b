"""Makes `"kv_connector": "agentkv"` mean our connector.

Symbol: `KVConnectorFactory.register_connector`, a public call; `_registry`, read to call it once.
Why: without it users have to give `kv_connector_module_path` and the name of the class as well.
Delete when: never needed to; vLLM offers this call for plugins.
"""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from agentkv.symbols import Symbol, find_problems

SYMBOLS = (
    Symbol(
        "vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory.register_connector",
        ("name", "module_path", "class_name"),
    ),
    Symbol("vllm.distributed.kv_transfer.kv_connector.factory:KVConnectorFactory._registry"),
)

CONNECTOR_NAME = "agentkv"
CONNECTOR_MODULE = "agentkv.connectors.connector"
CONNECTOR_CLASS = "AgentKVConnector"


def is_ours(name: str | None) -> bool:
    """Whether a `kv_connector` value means agentkv: the name, or the class with a module path."""
    return name in (CONNECTOR_NAME, CONNECTOR_CLASS)


def apply() -> str | None:
    """Register the name unless it is taken; returns what does not fit, or None."""
    if problems := find_problems(SYMBOLS):
        return problems[0]
    # By its class too: a MultiConnector looks up by that whose statistics it has.
    for name in (CONNECTOR_NAME, CONNECTOR_CLASS):
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, CONNECTOR_MODULE, CONNECTOR_CLASS)
    return None
