"""Items of the responses API as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from agentkv.doctor.pieces import content_pieces, dump, media_text, thinking_text
from agentkv.doctor.request import Json, Message, Piece, PieceKind
from agentkv.watch.formats import text_of

_CALL_TYPES = frozenset({"function_call", "custom_tool_call"})
_RESULT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})


def item_messages(items: Iterable[Json]) -> Iterator[Message]:
    """The items of an input: what one reply consists of (thinking, text, calls) is one message."""
    for role, group in groupby(map(item_message, items), key=lambda message: message.role):
        if role == "assistant":
            yield Message(role, tuple(piece for each in group for piece in each.pieces))
        else:
            yield from group


def item_message(item: Json) -> Message:
    """One item of an input, or of a reply's output."""
    kind = text_of(item.get("type"))
    call_id = text_of(item.get("call_id"))
    if kind in _CALL_TYPES:
        sent = item.get("arguments", item.get("input"))
        arguments = sent if isinstance(sent, str) else dump(sent)
        call = Piece(PieceKind.CALL, arguments, text_of(item.get("name")), call_id)
        return Message("assistant", (call,))
    if kind in _RESULT_TYPES:
        output = item.get("output")
        text = output if isinstance(output, str) else _texts(output)
        return Message("tool", (Piece(PieceKind.RESULT, text, call_id=call_id),))
    if kind == "reasoning":
        return Message("assistant", (Piece(PieceKind.THINKING, thinking_text(item)),))
    if kind in ("", "message"):
        return Message(text_of(item.get("role")), content_pieces(item.get("content")))
    return Message("assistant", (Piece(PieceKind.MEDIA, media_text(item)),))


def _texts(output: object) -> str:
    return "\n".join(piece.text for piece in content_pieces(output))
