"""The tag a client may put on a turn, read from whatever the request carried.

A tag is a hint: it never changes the prompt, a block key or an answer, and a malformed one is
dropped with a note instead of failing the request. Carriers: `kv_transfer_params: {"agentkv":
{...}}` (an object) and `vllm_xargs: {"agentkv.tool": ...}` (flat scalars).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TAG_KEY = "agentkv"
_MAX_TEXT_CHARS = 4096
_MAX_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class TurnTag:
    """What a client says of a turn and of the pause that will follow it.

    `tool`, `command`, `expected_wait_s` and `timeout_s` describe the coming pause; `last_turn` says
    that none will come: the session ends with this turn.
    """

    session_id: str | None = None
    tool: str | None = None
    command: str | None = None
    expected_wait_s: float | None = None
    timeout_s: float | None = None
    last_turn: bool = False


EMPTY_TAG = TurnTag()


def read_tag(kv_transfer_params: Any, extra_args: Any = None) -> tuple[TurnTag, tuple[str, ...]]:
    """Reads a tag; the second value names each key that was ignored and why.

    `kv_transfer_params` is the request's own field, `extra_args` the sampling parameters' flat
    extras. Neither needs to be well formed. Never raises.
    """
    raw, problems = _collect(kv_transfer_params, extra_args)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _PARSERS:
            problems.append(f"{key[:64]}: unknown key")
        elif value is not None:
            parsed = _PARSERS[key](value)
            if parsed is None:
                problems.append(f"{key}: not understood")
            else:
                values[key] = parsed
    return (TurnTag(**values) if values else EMPTY_TAG), tuple(problems)


def _collect(kv_transfer_params: Any, extra_args: Any) -> tuple[dict[str, Any], list[str]]:
    """The keys of both carriers; the object wins over the flat form."""
    raw: dict[str, Any] = {}
    if isinstance(extra_args, Mapping):
        prefix = TAG_KEY + "."
        for key, value in extra_args.items():
            if isinstance(key, str) and key.startswith(prefix):
                raw[key.removeprefix(prefix)] = value
    if not isinstance(kv_transfer_params, Mapping) or TAG_KEY not in kv_transfer_params:
        return raw, []
    tag = kv_transfer_params[TAG_KEY]
    if not isinstance(tag, Mapping):
        return raw, [f"{TAG_KEY}: expected an object, got {type(tag).__name__}"]
    raw.update((str(key), value) for key, value in tag.items())
    return raw, []


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value[:_MAX_TEXT_CHARS]


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(seconds) or seconds < 0:
        return None
    return min(seconds, _MAX_SECONDS)


def _flag(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return None


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "session_id": _text,
    "tool": _text,
    "command": _text,
    "expected_wait_s": _seconds,
    "timeout_s": _seconds,
    "last_turn": _flag,
}
