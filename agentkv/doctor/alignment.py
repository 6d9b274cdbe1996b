"""Which messages of one request are which of another: the seam between finding and comparing.

Messages are the same when their keys are (see `masks.message_key`): a changed number, other
whitespace or left-out thinking do not hide that a message came back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from agentkv.doctor.masks import masked
from agentkv.doctor.request import Message, PieceKind

MAX_MESSAGES = 2000
"""Longer histories are only held together where nothing but their end differs."""

_MAX_COMPARED_CHARS = 2000
_MIN_CUT_CHARS = 40
_MAX_RATIO_CHARS = 500
_MIN_RATIO, _MIN_REPLY_RATIO = 0.5, 0.85

_SUMMARY = re.compile(
    r"<summary>|conversation (?:so far|summary|history was)|summary of (?:the|our|this) "
    r"(?:conversation|session|work|earlier|previous)|(?:previous|earlier) (?:conversation|messages "
    r"(?:were|have)|context)|continued from a previous|compacted|condensed|"
    r"(?:history|context|conversation) (?:was|has been|is) summari[sz]ed",
    re.IGNORECASE,
)

Kind = Literal["equal", "replace", "delete", "insert"]


@dataclass(frozen=True, slots=True)
class Span:
    """Messages `i1:i2` of the former request became `j1:j2` of the later one."""

    kind: Kind
    i1: int
    i2: int
    j1: int
    j2: int


def leading_run(old: tuple[int, ...], new: tuple[int, ...]) -> int:
    """How many keys two requests have in common at the beginning."""
    num = 0
    for a, b in zip(old, new, strict=False):
        if a != b:
            break
        num += 1
    return num


def align(old: tuple[int, ...], new: tuple[int, ...]) -> list[Span]:
    """The spans in order; what both begin with is not searched through."""
    lead = leading_run(old, new)
    spans = [Span("equal", 0, lead, 0, lead)] if lead else []
    matcher = SequenceMatcher(None, old[lead:], new[lead:], autojunk=False)
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        spans.append(Span(kind, i1 + lead, i2 + lead, j1 + lead, j2 + lead))
    return spans


def num_equal(spans: list[Span]) -> int:
    return sum(span.i2 - span.i1 for span in spans if span.kind == "equal")


def keeps_last(spans: list[Span], num_old: int) -> bool:
    """Whether the former request's last message is in the later one."""
    return any(span.kind == "equal" and span.i2 == num_old for span in spans)


def is_alike(old: Message, new: Message) -> bool:
    """Whether one message may be the other, edited: an edit leaves much of it, or is a result."""
    if old.role != new.role:
        return False
    if old.has(PieceKind.RESULT) and new.has(PieceKind.RESULT):
        return True
    calls = [[p.name for p in m.pieces if p.kind is PieceKind.CALL] for m in (old, new)]
    if calls[0] and calls[0] == calls[1] and _args(old) == _args(new):
        return True
    a, b = (masked(_said(message))[:_MAX_COMPARED_CHARS] for message in (old, new))
    if a and b and (a in b or b in a):
        return True
    # Two replies of a model to one prompt are alike, too: they must be nearly the same.
    least = _MIN_REPLY_RATIO if old.role in ("assistant", "prompt") else _MIN_RATIO
    matcher = SequenceMatcher(None, a[:_MAX_RATIO_CHARS], b[:_MAX_RATIO_CHARS], autojunk=False)
    return (
        matcher.real_quick_ratio() > least
        and matcher.quick_ratio() > least
        and matcher.ratio() > least
    )


def is_cut_from(old: Message, new: Message) -> bool:
    """Whether the later message is the beginning of the former: all that a lone one can tell."""
    before, after = masked(_said(old)), masked(_said(new))
    return old.role == new.role and len(after) >= _MIN_CUT_CHARS and before.startswith(after)


def _args(message: Message) -> list[str]:
    return [masked(piece.text) for piece in message.pieces if piece.kind is PieceKind.CALL]


def _said(message: Message) -> str:
    return "".join(p.name + p.text for p in message.pieces if p.kind is not PieceKind.THINKING)


def is_summary(messages: tuple[Message, ...]) -> bool:
    """Whether one of the messages tells what others said."""
    return any(
        _SUMMARY.search(piece.text[:_MAX_COMPARED_CHARS])
        for message in messages
        for piece in message.pieces
        if piece.kind is PieceKind.TEXT
    )
