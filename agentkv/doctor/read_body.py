"""Request bodies of the OpenAI and Anthropic APIs as `Request`s.

Why liberal: logs come from proxies and gateways that add and leave out fields. What cannot be a
request for tokens is told apart by `NotARequestError`, with the reason in a few words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from agentkv.doctor.pieces import content_pieces, dump, head_texts, is_marked, read_tools
from agentkv.doctor.read_items import item_messages
from agentkv.doctor.request import Json, Message, Piece, PieceKind, Reply, Request, Usage
from agentkv.watch.dialects import read_dialects
from agentkv.watch.formats import object_of, objects_of, text_of
from agentkv.watch.identity import session_of

HEAD_ROLES = frozenset({"system", "developer"})
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_TEMPLATE_SETTINGS = (
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "documents",
    "mm_processor_kwargs",
    "add_special_tokens",
)

SESSION_HINT, TAG_HINT, MARKER_HINT = "session id", "agent tags", "cache_control"


class NotARequestError(ValueError):
    """The line holds no request for tokens; the text says why."""


def read_body(
    line: int,
    body: Json,
    *,
    headers: Mapping[str, str],
    session: str | None = None,
    path: str = "",
    usage: Usage | None = None,
    reply: Reply | None = None,
) -> Request:
    """One request. `session` is what the log itself says. Raises NotARequestError."""
    api = _api_of(body, path)
    identity = session_of(headers, body)
    named = session or (identity.name if identity is not None else None)
    head, messages, prompt_ids = _READERS[api](body)
    if not head and not messages and not prompt_ids:
        raise NotARequestError("it has no prompt")
    return Request(
        line=line,
        api=api,
        body=body,
        session=named or read_dialects(body, headers).session_id,
        hints=_hints(body, headers, is_named=named is not None),
        model=text_of(body.get("model")),
        cache_salt=text_of(body.get("cache_salt")),
        template_settings=_template_settings(body),
        skips_cache=body.get("prompt_logprobs") is not None,
        tools=read_tools(body),
        head=head,
        messages=messages,
        prompt_ids=prompt_ids,
        usage=usage or Usage(),
        reply=reply or Reply(),
    )


def _api_of(body: Json, path: str) -> str:
    if "messages" in body:
        return "messages" if _is_anthropic(body, path) else "chat"
    if "input" in body and "embeddings" not in path:
        return "responses"
    if "prompt" in body:
        return "completions"
    raise NotARequestError("it has none of messages, input and prompt")


def _is_anthropic(body: Json, path: str) -> bool:
    if "chat/completions" in path:
        return False
    if path.rstrip("/").endswith("/messages") or "system" in body or "anthropic_version" in body:
        return True
    if any("input_schema" in tool for tool in objects_of(body.get("tools"))):
        return True
    blocks = (
        block
        for message in objects_of(body.get("messages"))
        for block in objects_of(message.get("content"))
    )
    return any(block.get("type") in _ANTHROPIC_BLOCKS for block in blocks)


_Parts = tuple[tuple[str, ...], tuple[Message, ...], tuple[int, ...]]


def _read_chat(body: Json) -> _Parts:
    sent = objects_of(body.get("messages"))
    num_head = _leading_head(text_of(message.get("role")) for message in sent)
    head = tuple(text for message in sent[:num_head] for text in head_texts(message.get("content")))
    return head, tuple(chat_message(message) for message in sent[num_head:]), ()


def chat_message(message: Json) -> Message:
    """One message of chat completions, also one of a reply."""
    role = text_of(message.get("role"))
    if role in ("tool", "function"):
        text = "\n".join(piece.text for piece in content_pieces(message.get("content")))
        piece = Piece(PieceKind.RESULT, text, call_id=text_of(message.get("tool_call_id")))
        return Message(role, (piece,), is_marked(message))
    thinking = text_of(message.get("reasoning")) or text_of(message.get("reasoning_content"))
    pieces = [Piece(PieceKind.THINKING, thinking)] if thinking else []
    pieces.extend(content_pieces(message.get("content")))
    for call in objects_of(message.get("tool_calls")):
        function = object_of(call.get("function"))
        sent = function.get("arguments")
        arguments = sent if isinstance(sent, str) else dump(sent)
        name, call_id = text_of(function.get("name")), text_of(call.get("id"))
        pieces.append(Piece(PieceKind.CALL, arguments, name, call_id))
    return Message(role, tuple(pieces), is_marked(message))


def _read_messages(body: Json) -> _Parts:
    sent = objects_of(body.get("messages"))
    return head_texts(body.get("system")), tuple(block_message(each) for each in sent), ()


def block_message(message: Json) -> Message:
    """One message of Anthropic's API, also a reply."""
    pieces = content_pieces(message.get("content"))
    return Message(text_of(message.get("role")), pieces, is_marked(message))


def _read_responses(body: Json) -> _Parts:
    if body.get("previous_response_id"):
        raise NotARequestError(
            "it goes on from previous_response_id, so that the history is only in the server"
        )
    head = head_texts(body.get("instructions"))
    given = body.get("input")
    if isinstance(given, str):
        return head, (Message("user", content_pieces(given)),), ()
    items = objects_of(given)
    num_head = _leading_head(text_of(item.get("role")) for item in items)
    more = tuple(text for item in items[:num_head] for text in head_texts(item.get("content")))
    return (*head, *more), tuple(item_messages(items[num_head:])), ()


def _read_completions(body: Json) -> _Parts:
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return (), tuple(_lines(prompt)), ()
    ids = token_ids(prompt)
    if ids:
        return (), (), ids
    raise NotARequestError("its prompt is neither one text nor one list of token ids")


def _lines(prompt: str) -> Iterator[Message]:
    """A raw prompt, line by line in place of messages; empty lines go with the line before."""
    for line in re.findall(r".+\n*|\n+", prompt):
        yield Message("prompt", (Piece(PieceKind.TEXT, line),))


def token_ids(value: object) -> tuple[int, ...]:
    """A list of token ids; nothing where it is something else."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        return tuple(value)
    return ()


def _leading_head(roles: Iterable[str]) -> int:
    """How many messages at the beginning belong to the head."""
    num_head = 0
    for role in roles:
        if role not in HEAD_ROLES:
            break
        num_head += 1
    return num_head


_READERS = {
    "chat": _read_chat,
    "messages": _read_messages,
    "responses": _read_responses,
    "completions": _read_completions,
}


def _template_settings(body: Json) -> dict[str, str]:
    return {
        name: dump(body[name], is_sorted=True)
        for name in _TEMPLATE_SETTINGS
        if body.get(name) is not None
    }


def _hints(body: Json, headers: Mapping[str, str], *, is_named: bool) -> frozenset[str]:
    """The kinds of hints that a request carries."""
    tags = [name for name in read_dialects(body, headers).seen if "cache_control" not in name]
    places = [*objects_of(body.get("messages")), *objects_of(body.get("tools"))]
    blocks = objects_of(body.get("system"))
    has_marker = any(map(is_marked, [*places, *blocks])) or "cache_control" in body
    found = {SESSION_HINT: is_named, TAG_HINT: bool(tags), MARKER_HINT: has_marker}
    return frozenset(name for name, is_there in found.items() if is_there)
