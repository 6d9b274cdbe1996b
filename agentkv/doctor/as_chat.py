"""A request as a chat template takes it: what vLLM makes of all three APIs before it renders.

Follows `entrypoints/anthropic/serving.py` and `renderers/chat_utils.py` of vLLM 0.32: system texts
first, tool results as messages of their own, thinking under both of its names, arguments parsed.
"""

from __future__ import annotations

import json
from typing import Any

from agentkv.doctor.request import Message, Piece, PieceKind, Request

_JOINS = {"messages": ""}


def chat_messages(request: Request) -> list[dict[str, Any]]:
    """The messages in OpenAI's form, with the arguments of calls as objects."""
    head = _JOINS.get(request.api, "\n").join(request.head)
    found: list[dict[str, Any]] = [{"role": "system", "content": head}] if head else []
    for message in request.messages:
        found.extend(_messages(message))
    return _merged(found) if request.api == "responses" else found


def _messages(message: Message) -> list[dict[str, Any]]:
    """One message; the results that a message of Anthropic's holds go before its text."""
    found = [
        {"role": "tool", "tool_call_id": piece.call_id, "content": piece.text}
        for piece in message.pieces
        if piece.kind is PieceKind.RESULT
    ]
    rest = [piece for piece in message.pieces if piece.kind is not PieceKind.RESULT]
    if rest or not found:
        found.append(_message(message.role, rest))
    return found


def _message(role: str, pieces: list[Piece]) -> dict[str, Any]:
    texts = [p.text for p in pieces if p.kind in (PieceKind.TEXT, PieceKind.MEDIA)]
    made: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    thinking = "".join(p.text for p in pieces if p.kind is PieceKind.THINKING)
    if thinking:
        made["reasoning"] = made["reasoning_content"] = thinking
    calls = [_call(piece) for piece in pieces if piece.kind is PieceKind.CALL]
    if calls:
        made["tool_calls"] = calls
    return made


def _call(piece: Piece) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": _arguments(piece.text)}
    return {"id": piece.call_id, "type": "function", "function": function}


def _arguments(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return text


def _merged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of one reply of the responses API (thinking, text, calls) make one message."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] == "assistant":
            last = found[-1]
            last["content"] = "\n".join(t for t in (last["content"], message["content"]) if t)
            for key in ("reasoning", "reasoning_content"):
                if key in message:
                    last[key] = last.get(key, "") + message[key]
            if "tool_calls" in message:
                last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
        else:
            found.append(message)
    return found


def chat_tools(request: Request) -> list[dict[str, Any]]:
    """The tools in OpenAI's form."""
    return [{"type": "function", "function": json.loads(tool.text)} for tool in request.tools]
