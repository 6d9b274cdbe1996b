"""A request as its prompt is made of it, whichever API it came by.

What: settings, tools, head and messages, in the order in which templates print them. Why: what
changes a prompt must be told from what does not (streaming, sampling, markers of others' caches).
Where: `read_body` makes them, `threads` and `compare` hold one against another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Json = Mapping[str, Any]


class PieceKind(str, Enum):
    TEXT = "text"
    THINKING = "thinking"
    CALL = "tool call"
    RESULT = "tool result"
    MEDIA = "media"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message. `text` is what a template prints of it; of a call it is the arguments.

    `name` is the tool of a call, `call_id` the id of a call or of what answers it.
    """

    kind: PieceKind
    text: str
    name: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """`is_marked`: a marker of a provider's cache lies on it, which no template prints."""

    role: str
    pieces: tuple[Piece, ...]
    is_marked: bool = False

    def text_of(self, kind: PieceKind) -> str:
        """The texts of one kind, one after the other."""
        return "".join(piece.text for piece in self.pieces if piece.kind is kind)

    def has(self, kind: PieceKind) -> bool:
        return any(piece.kind is kind for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Tool:
    """`text`: the definition as templates print it; `sorted_text`: the same with sorted keys."""

    name: str
    text: str
    sorted_text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server counted; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered, where the log has it. `token_ids` without the prompt's."""

    message: Message | None = None
    reply_id: str | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`line` counts from 1. `session` is None where the request names none. `hints` are the kinds
    of hints that it carries. `prompt_ids`: the prompt's tokens, where the log has them."""

    line: int
    api: str
    body: Json
    session: str | None = None
    hints: frozenset[str] = frozenset()
    model: str = ""
    cache_salt: str = ""
    template_settings: Mapping[str, str] = field(default_factory=dict)
    skips_cache: bool = False
    tools: tuple[Tool, ...] = ()
    head: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    usage: Usage = Usage()
    reply: Reply = Reply()

    @property
    def num_chars(self) -> int:
        """Letters of the prompt, as far as the request shows it."""
        head = sum(map(len, self.head)) + sum(len(tool.text) for tool in self.tools)
        return head + sum(message_chars(message) for message in self.messages)


def message_chars(message: Message) -> int:
    return sum(len(piece.text) + len(piece.name) for piece in message.pieces)
