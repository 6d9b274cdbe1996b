"""Request logs, one JSON object a line, in the forms that proxies and servers write.

What: a line is a request's body, or an object that holds one beside headers, session, usage and
reply, under the names that are common. Why liberal: no two gateways agree. A line that is no
request is told with its reason, never passed over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.doctor.read_body import (
    NotARequestError,
    block_message,
    chat_message,
    read_body,
    token_ids,
)
from agentkv.doctor.read_items import item_messages
from agentkv.doctor.request import Json, Message, Reply, Request, Usage
from agentkv.errors import ConfigError
from agentkv.watch.formats import id_of, object_of, objects_of, text_of

_BODY_KEYS = ("body", "request_body", "request", "payload", "json", "kwargs", "data")
_REPLY_KEYS = ("response", "response_body", "reply", "completion", "output")
_HEADER_KEYS = ("headers", "request_headers")
_SESSION_KEYS = ("session_id", "session", "sessionId", "conversation_id", "trace_id")
_PATH_KEYS = ("path", "url", "endpoint", "uri")
_PROMPT_KEYS = ("messages", "input", "prompt")
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that was not understood."""

    line: int
    reason: str


def read_log(path: Path) -> Iterator[Request | Skipped]:
    """Each line but empty ones, in order. Raises ConfigError where the file cannot be read."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.strip():
                    yield read_line(number, raw)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def read_line(number: int, raw: bytes) -> Request | Skipped:
    """One line. Never raises for what is in it."""
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return Skipped(number, "not JSON")
    if not isinstance(entry, dict):
        return Skipped(number, "not an object")
    try:
        return _read_entry(number, entry)
    except NotARequestError as error:
        return Skipped(number, str(error))
    except RecursionError:
        return Skipped(number, "nested too deeply")


def _read_entry(number: int, entry: Json) -> Request:
    body, holders = _find_body(entry)
    if body is None:
        raise NotARequestError("no request body in it (messages, input or prompt)")
    around = {key: value for holder in reversed(holders) for key, value in holder.items()}
    headers = _headers(_first(around, _HEADER_KEYS))
    answer = _json_object(_first(around, _REPLY_KEYS))
    usage = _usage(object_of(around.get("usage")) or object_of(answer.get("usage")))
    return read_body(
        number,
        body,
        headers=headers,
        session=next((text for key in _SESSION_KEYS if (text := text_of(around.get(key)))), None),
        path=next((text for key in _PATH_KEYS if (text := text_of(around.get(key)))), ""),
        usage=usage,
        reply=_reply(answer, around),
    )


def _find_body(entry: Json) -> tuple[Json | None, list[Json]]:
    """The body, and the objects around it from the outside in."""
    holders: list[Json] = []
    found = entry
    for _ in range(_MAX_DEPTH):
        if any(key in found for key in _PROMPT_KEYS):
            return found, holders
        holders.append(found)
        inner = next((each for key in _BODY_KEYS if (each := _json_object(found.get(key)))), None)
        if inner is None:
            return None, holders
        found = inner
    return (found, holders) if any(key in found for key in _PROMPT_KEYS) else (None, holders)


def _json_object(value: Any) -> Json:
    """An object, also one that is written as a text."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return object_of(value)


def _first(entry: Json, keys: tuple[str, ...]) -> Any:
    return next((entry[key] for key in keys if entry.get(key)), None)


def _headers(value: Any) -> Mapping[str, str]:
    """From an object, or a list of pairs."""
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
        value = {str(name): text for name, text in pairs}
    return {name: text for name, text in object_of(value).items() if isinstance(text, str)}


def _usage(usage: Json) -> Usage:
    """Of any API; Anthropic counts what it had cached beside the input, the others within it."""
    details = object_of(usage.get("prompt_tokens_details")) or object_of(
        usage.get("input_tokens_details")
    )
    output = _count(usage, "completion_tokens", "output_tokens")
    read = _count(usage, "cache_read_input_tokens")
    if read is not None:
        created = _count(usage, "cache_creation_input_tokens") or 0
        return Usage((_count(usage, "input_tokens") or 0) + read + created, output, read)
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    return Usage(prompt, output, _count(details, "cached_tokens"))


def _count(usage: Json, *names: str) -> int | None:
    found = next((usage[name] for name in names if name in usage), None)
    return found if type(found) is int and found >= 0 else None


def _reply(answer: Json, around: Json) -> Reply:
    choice = next(iter(objects_of(answer.get("choices"))), {})
    ids = token_ids(choice.get("token_ids")) or token_ids(around.get("output_token_ids"))
    return Reply(_reply_message(answer, choice), id_of(answer.get("id")), ids)


def _reply_message(answer: Json, choice: Json) -> Message | None:
    if message := object_of(choice.get("message")):
        return chat_message({**message, "role": "assistant"})
    if answer.get("type") == "message" or "stop_reason" in answer:
        return block_message({**answer, "role": "assistant"})
    return next(item_messages(objects_of(answer.get("output"))), None)
