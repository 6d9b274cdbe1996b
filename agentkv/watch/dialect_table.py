"""One table of how others tag a request, and what each tag means to us.

What: the hints about sessions, tools and retention that clients, gateways and research systems
send, each row with the place of its objects and the meaning of their keys. Why: nobody tags for
one more project. Where: read by `dialects`. A new dialect is one more row.

Wishes to keep KV, for some time or before other KV, are counted and not followed. Nothing is given
up while nobody needs its room. When somebody does, a wish that costs nothing is everybody's:
clients put the same time on every request, and no two dialects share a scale of priorities.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentkv.signals import MAX_SECONDS, MAX_TEXT_CHARS

Json = Mapping[str, Any]
Parser = Callable[[Any], Any]
Meaning = tuple[str, Parser]
"""A field of `Hints`, and how its value is read; the parser gives None for what it cannot read."""

WISH: Final[Meaning] = ("", str)
"""Of a key that is counted and not followed."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A row of the table: where its objects are, and what their keys mean.

    `find` gives the objects of a body. Of two keys with one meaning the first in `keys` wins; a key
    without a meaning is known, but says nothing that we use. `is_shared`: others put keys there
    too, so that unknown ones are not ours to count.
    """

    name: str
    find: Callable[[Json], Iterator[Json]]
    keys: Mapping[str, Meaning | None]
    is_shared: bool = False


def object_of(value: object) -> Json:
    """An object, also one that was packed into a string, as carriers of scalars need it."""
    if isinstance(value, str) and value.startswith("{") and len(value) <= MAX_TEXT_CHARS:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> Iterator[Json]:
    if isinstance(value, list):
        yield from (item for item in value[:64] if isinstance(item, dict))


def _at(*path: str) -> Callable[[Json], Iterator[Json]]:
    """Finds the object at a path."""

    def find(body: Json) -> Iterator[Json]:
        for name in path:
            body = object_of(body.get(name))
        if body:
            yield body

    return find


def _tokencake(body: Json) -> Iterator[Json]:
    xargs = object_of(body.get("vllm_xargs"))
    prefix = "tokencake."
    yield {k.removeprefix(prefix): v for k, v in xargs.items() if k.startswith(prefix)}
    yield object_of(xargs.get("tokencake"))


def _kv_hint_payloads(body: Json) -> Iterator[Json]:
    """vLLM's envelope, also inside kv_transfer_params; directives are laid open."""
    for holder in (body, object_of(body.get("kv_transfer_params"))):
        for action in _objects(object_of(holder.get("kv_hints")).get("actions")):
            payload = object_of(action.get("payload"))
            yield {key: value for key, value in payload.items() if key != "directives"}
            yield from _objects(payload.get("directives"))


def _retention_directives(body: Json) -> Iterator[Json]:
    for holder in (
        body,
        object_of(body.get("kv_transfer_params")),
        object_of(body.get("vllm_xargs")),
    ):
        yield from _objects(holder.get("retention_directives"))


def _trt_llm_configs(body: Json) -> Iterator[Json]:
    for holder in (body, object_of(body.get("kv_transfer_params"))):
        config = object_of(holder.get("kv_cache_retention_config"))
        yield {k: v for k, v in config.items() if k != "token_range_retention_configs"}
        yield from _objects(config.get("token_range_retention_configs"))


_LAST_MESSAGES = 8  # breakpoints move with the end of the conversation


def _cache_controls(body: Json) -> Iterator[Json]:
    """Anthropic's breakpoints. Only the ends are searched: a client may set four in all."""
    messages = body.get("messages")
    recent = messages[-_LAST_MESSAGES:] if isinstance(messages, list) else []
    blocks: list[Any] = [body]
    blocks += _last(body.get("tools"))
    for content in (body.get("system"), *(m.get("content") for m in _objects(recent))):
        blocks += _last(content)
    for block in blocks:
        control = block.get("cache_control") if isinstance(block, dict) else None
        if isinstance(control, dict):
            yield control


def _last(items: object) -> list[Any]:
    return items[-_LAST_MESSAGES:] if isinstance(items, list) else []


def encodable(value: Any) -> Any:
    """The value; of a text the form that can be sent on: JSON may hold halves of characters."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _text(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        return None
    return encodable(value.strip()[:MAX_TEXT_CHARS])


def _id(value: Any) -> Any:
    return (
        value if isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable() else None
    )


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return min(seconds, MAX_SECONDS) if math.isfinite(seconds) and seconds >= 0 else None


def _flag(value: Any) -> bool | None:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower())
    return bool(value) if isinstance(value, (bool, int)) and value in (0, 1) else None


def _is_close(value: Any) -> bool | None:
    return {"close": True, "open": False}.get(value) if isinstance(value, str) else None


_SESSION = ("session_id", _id)
_TOOL, _LAST_TURN = ("tool", _text), ("last_turn", _flag)


def _wishes(*keys: str) -> dict[str, Meaning]:
    return dict.fromkeys(keys, WISH)


def _unused(*keys: str) -> dict[str, None]:
    return dict.fromkeys(keys)


DIALECTS: Final = (
    Dialect(
        "continuum",
        _at("vllm_xargs"),
        {
            "job_id": _SESSION,
            "this_func_call": _TOOL,
            "is_last_step": _LAST_TURN,
            **_unused("last_func_call"),
        },
        is_shared=True,
    ),
    Dialect(
        "tokencake",
        _tokencake,
        {
            "lifecycle_id": _SESSION,
            **_wishes("importance"),
            **_unused("agent_type", "offload_eligible", "reusable_prefix"),
        },
    ),
    Dialect(
        "agentinfer",
        _at("vllm_xargs", "agentic_context"),
        {
            "program_id": _SESSION,
            "session_id": _SESSION,
            **_unused(
                "parent_program_id",
                "task_id",
                "agent_id",
                "blocks_parent",
                "expected_resume",
                "agent_role",
            ),
            **_unused("spawn_reason"),
        },
    ),
    Dialect(
        "thunderagent", _at(), {"program_id": _SESSION, **_unused("docker_ids")}, is_shared=True
    ),
    Dialect(
        "dynamo/agent_context",
        _at("nvext", "agent_context"),
        {
            "session_id": _SESSION,
            "session_final": _LAST_TURN,
            **_unused("parent_session_id"),
        },
    ),
    Dialect(
        "dynamo/session_control",
        _at("nvext", "session_control"),
        {"session_id": _SESSION, "action": ("last_turn", _is_close), **_wishes("timeout")},
    ),
    Dialect(
        "dynamo/agent_hints",
        _at("nvext", "agent_hints"),
        {
            "prefix_id": _SESSION,  # of the NeMo Agent Toolkit, as are the last three
            **_wishes("priority", "strict_priority"),
            **_unused("osl", "speculative_prefill"),
            **_unused("total_requests", "iat", "latency_sensitivity"),
        },
    ),
    Dialect(
        "dynamo/cache_control",
        _at("nvext", "cache_control"),
        {**_wishes("ttl"), **_unused("type")},
    ),
    Dialect(
        "verl",
        _at("kv_transfer_params", "agent_hint"),
        {
            "trajectory_id": _SESSION,
            **_wishes("kv_priority", "lease_until"),
            **_unused("schema_version", "tools_available"),
        },
    ),
    Dialect(
        "evoke",
        _at("kv_transfer_params", "evoke"),
        {"evoke_session": _SESSION, **_wishes("priority"), **_unused("source_type")},
    ),
    Dialect(
        "infercept",
        _at("vllm_xargs"),
        {
            "api_exec_time": ("expected_wait_s", _seconds),
            **_unused("api_invoke_interval", "api_max_calls"),
        },
        is_shared=True,
    ),
    Dialect(
        "lmcache",
        _at("kv_transfer_params"),
        _wishes("lmcache_retention_ttl_sec"),
        is_shared=True,
    ),
    Dialect(
        "vllm/kv_hints",
        _kv_hint_payloads,
        {
            **_wishes("ttl_seconds", "duration", "priority", "value"),
            **_unused("scope", "start", "end", "covers_output"),
            **_unused("target", "location", "claim_id", "revision"),
        },
    ),
    Dialect(
        "vllm/retention_directives",
        _retention_directives,
        {**_wishes("duration", "priority"), **_unused("start", "end")},
    ),
    Dialect(
        "trt-llm",
        _trt_llm_configs,
        {
            **_wishes("duration_ms", "decode_duration_ms"),
            **_wishes("priority", "decode_retention_priority"),
            **_unused("token_start", "token_end"),
        },
    ),
    Dialect(
        "anthropic/cache_control", _cache_controls, {**_wishes("ttl"), **_unused("type", "scope")}
    ),
    Dialect(
        "openai/prompt_cache",
        _at(),
        {**_wishes("prompt_cache_retention"), **_unused("prompt_cache_key")},
        is_shared=True,
    ),
)
"""Tags of sessions first, then those of retention; `examples` of each are in the tests."""
