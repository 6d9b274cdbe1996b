"""agentkv as one of the connectors of vLLM's MultiConnector.

What: where agentkv's settings are in such a config, and beside what it cannot stand.
Why: vLLM builds a MultiConnector's parts anew in each process from the entries of one list, so what
must be settled once has to be written into that list.
Where: read by `engine_config` and `vllm_settings`; a config for agentkv alone has one part: itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.config import KVTransferConfig

from agentkv.errors import ConfigError

from .connector_name import is_ours

# They tell each other where their KV lies; vLLM passes on what the first part has to tell.
NEED_THE_HANDSHAKE = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
# Theirs is the same region of shared memory, by name, and the same metrics.
SAME_AS_OURS = ("OffloadingConnector",)


def field_of(transfer: object, name: str) -> Any:
    """A field of the config, which vLLM takes as an object or as a mapping."""
    return transfer.get(name) if isinstance(transfer, Mapping) else getattr(transfer, name, None)


def parts_of(transfer: object) -> list[Any]:
    """The entries of a MultiConnector's list; [] for any other config."""
    extra = field_of(transfer, "kv_connector_extra_config")
    parts = extra.get("connectors") if isinstance(extra, Mapping) else None
    return parts if isinstance(parts, list) else []


def our_part(transfer: object) -> Any:
    """The config itself, or the entry in its list, that selects agentkv; None if none does."""
    for part in (transfer, *parts_of(transfer)):
        if is_ours(field_of(part, "kv_connector")):
            return part
    return None


def our_extra(transfer: object) -> dict[str, Any]:
    """agentkv's own settings."""
    return dict(field_of(our_part(transfer), "kv_connector_extra_config") or {})


def with_our_extra(transfer: KVTransferConfig, ours: dict[str, Any]) -> dict[str, Any]:
    """The whole config's extra with agentkv's settings replaced. The argument stays as it was."""
    mine = our_part(transfer)
    if mine is transfer:
        return ours
    parts = [
        {**part, "kv_connector_extra_config": ours} if part is mine else part
        for part in parts_of(transfer)
    ]
    return {**transfer.kv_connector_extra_config, "connectors": parts}


def refuse(transfer: object) -> None:
    """Raise ConfigError for parts beside which agentkv cannot work."""
    names = [field_of(part, "kv_connector") for part in parts_of(transfer)]
    places = [place for place, name in enumerate(names) if is_ours(name)]
    if len(places) > 1:
        raise ConfigError(
            "kv_connector_extra_config.connectors: agentkv is there twice; once will do"
        )
    for name in names:
        if name in SAME_AS_OURS:
            raise ConfigError(
                f"kv_connector_extra_config.connectors: {name} is what agentkv builds on; remove it"
            )
    for name in names[places[0] + 1 :] if places else ():
        if name in NEED_THE_HANDSHAKE:
            raise ConfigError(
                f"kv_connector_extra_config.connectors: put {name} before agentkv: "
                "vLLM passes on the handshake of the first one that has one"
            )
