"""Pieces of messages from the content of the three APIs, and tools as templates print them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from agentkv.doctor.request import Json, Piece, PieceKind, Tool
from agentkv.watch.formats import object_of, objects_of, text_of

_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
_THINKING_TYPES = frozenset({"thinking", "reasoning"})
_UNPRINTED_TYPES = frozenset({"redacted_thinking", "tool_reference"})

# Claude Code's line with a value that changes in every request; vLLM removes it where it begins a
# block of a system prompt (entrypoints/anthropic/serving.py and renderers/chat_utils.py of 0.32).
_BILLING_HEADER = "x-anthropic-billing-header"


def dump(value: object, *, is_sorted: bool = False) -> str:
    """JSON as templates print it."""
    return json.dumps(value, ensure_ascii=False, sort_keys=is_sorted)


def content_pieces(content: object) -> tuple[Piece, ...]:
    """Of a string, or of a list of parts or blocks of any of the APIs."""
    if isinstance(content, str):
        return (Piece(PieceKind.TEXT, content),) if content else ()
    return tuple(piece for part in _parts(content) for piece in _part_pieces(part))


def _parts(content: object) -> Iterator[Json]:
    if isinstance(content, list):
        for part in content:
            yield {"type": "text", "text": part} if isinstance(part, str) else object_of(part)


def _part_pieces(part: Json) -> Iterator[Piece]:
    kind = text_of(part.get("type"))
    if kind in _TEXT_TYPES:
        text = text_of(part.get("text")) or text_of(part.get("refusal"))
        if text:
            yield Piece(PieceKind.TEXT, text)
    elif kind in _THINKING_TYPES:
        yield Piece(PieceKind.THINKING, thinking_text(part))
    elif kind == "tool_use":
        name, call_id = text_of(part.get("name")), text_of(part.get("id"))
        yield Piece(PieceKind.CALL, dump(part.get("input")), name, call_id)
    elif kind == "tool_result":
        yield from result_pieces(part.get("content"), text_of(part.get("tool_use_id")))
    elif kind and kind not in _UNPRINTED_TYPES:
        yield Piece(PieceKind.MEDIA, media_text(part))


def result_pieces(content: object, call_id: str) -> Iterator[Piece]:
    """The result of a tool: its texts are printed as one."""
    pieces = content_pieces(content)
    texts = [piece.text for piece in pieces if piece.kind is PieceKind.TEXT]
    yield Piece(PieceKind.RESULT, "\n".join(texts), call_id=call_id)
    yield from (piece for piece in pieces if piece.kind is PieceKind.MEDIA)


def thinking_text(part: Json) -> str:
    """Of a thinking block, or of an item of the responses API."""
    if thinking := text_of(part.get("thinking")):
        return thinking
    told = [*objects_of(part.get("content")), *objects_of(part.get("summary"))]
    return "".join(text_of(each.get("text")) for each in told) or text_of(
        part.get("encrypted_content")
    )


def media_text(part: Json) -> str:
    """Stands for an image, a file or a sound: its bytes decide, the markers beside it do not."""
    kept = {key: value for key, value in part.items() if key != "cache_control"}
    digest = hashlib.blake2b(dump(kept, is_sorted=True).encode(), digest_size=8).hexdigest()
    return f"<{text_of(part.get('type')) or 'media'} {digest}>"


def is_marked(message: Json) -> bool:
    """Whether a cache marker lies on the message or on one of its parts."""
    content = message.get("content")
    parts = objects_of(content)
    return "cache_control" in message or any("cache_control" in part for part in parts)


def head_texts(content: object) -> tuple[str, ...]:
    """The texts of a system prompt, one for each block, less what vLLM removes itself."""
    if isinstance(content, str):
        return (_without_billing_line(content),) if content else ()
    texts = [piece.text for piece in content_pieces(content) if piece.kind is PieceKind.TEXT]
    return tuple(kept for text in texts if (kept := _without_billing_line(text)))


def _without_billing_line(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING_HEADER) else text


def read_tools(body: Json) -> tuple[Tool, ...]:
    """The tools of any API, in order."""
    return tuple(_tool(tool) for tool in objects_of(body.get("tools")))


def _tool(tool: Json) -> Tool:
    """vLLM reads a tool's own fields in its own order; within the schema the order is the sender's.

    Tools that a server runs itself (web search and the like) are taken as they are.
    """
    function = object_of(tool.get("function")) or tool
    name = text_of(function.get("name"))
    schema = function.get("parameters", function.get("input_schema"))
    if not name or (schema is None and "description" not in function):
        kept = {key: value for key, value in tool.items() if key != "cache_control"}
        return Tool(
            name or text_of(tool.get("type")),
            dump(kept, is_sorted=True),
            dump(kept, is_sorted=True),
        )
    known = {"name": name, "description": function.get("description"), "parameters": schema}
    return Tool(name, dump(known), dump(known, is_sorted=True))
