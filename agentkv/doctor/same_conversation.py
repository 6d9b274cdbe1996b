"""Whether one request is another one's conversation with something in it changed.

Why so careful: agents of one kind share long instructions, and their tools' results are often the
same; two conversations of theirs look like one that was edited. So what came back must be most of
the former history, a reply of the model's among it, and no reply may have become another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentkv.doctor.alignment import (
    Span,
    align,
    is_alike,
    is_cut_from,
    is_summary,
    keeps_last,
    num_equal,
)
from agentkv.doctor.masks import masked
from agentkv.doctor.request import Message, PieceKind, Request

_MIN_MATCHED = 2
_MIN_MATCHED_LATE = 3
_MIN_REPLY_CHARS = 40
_MIN_PROMPT_SHARE = 0.95
_NOTE_ROLES = ("user", "system", "developer")


def edited_from(
    old: Request, new: Request, old_keys: tuple[int, ...], new_keys: tuple[int, ...], lead: int
) -> int | None:
    """How many messages came back, where `new` is `old` edited and more; else None.

    They begin with `lead` messages that are the same, but not all of `old`.
    """
    former, later = old.messages, new.messages
    if len(former) == 1:
        return 0 if is_cut_from(former[0], later[0]) and old.head == new.head else None
    if lead == len(former) - 1 and _has_other_last(former[lead], later[lead:], lead):
        return lead
    spans = align(old_keys, new_keys)
    num_matched = num_equal(spans)
    if not keeps_last(spans, len(former)) or _has_other_reply(spans, former, later):
        return None
    if former[0].role == "prompt":
        return num_matched if _is_same_prompt(spans, former, later) else None
    if lead:
        return num_matched if num_matched >= _MIN_MATCHED else None
    return num_matched if _is_same_without_beginning(spans, old, new) else None


def _has_other_last(last: Message, later: tuple[Message, ...], lead: int) -> bool:
    """All came back but the last message: it was edited, or was a note and is gone."""
    if len(later) > 1 and is_alike(last, later[0]):
        return True
    return lead > 0 and last.role in _NOTE_ROLES and later[0].role == "assistant"


def _has_other_reply(
    spans: list[Span], former: tuple[Message, ...], later: tuple[Message, ...]
) -> bool:
    """A model's words are not edited into others: two replies to one prompt are a fork."""
    for span in spans:
        if span.kind != "replace":
            continue
        old = _replies(former[span.i1 : span.i2])
        new = _replies(later[span.j1 : span.j2])
        for a, b in zip(old, new, strict=False):
            if not is_alike(a, b):
                return True
    return False


def _replies(messages: tuple[Message, ...]) -> Iterator[Message]:
    return (message for message in messages if message.role == "assistant")


def _is_same_prompt(
    spans: list[Span], former: tuple[Message, ...], later: tuple[Message, ...]
) -> bool:
    """Of raw prompts, line by line: nearly all of it and more, and changes are like what was."""
    if len(later) <= len(former) or num_equal(spans) < _MIN_PROMPT_SHARE * len(former):
        return False
    changed = (span for span in spans if span.kind == "replace")
    return all(is_alike(former[span.i1], later[span.j1]) for span in changed)


def _is_same_without_beginning(spans: list[Span], old: Request, new: Request) -> bool:
    """The first message is gone or another one; what follows must leave no doubt."""
    if old.head != new.head:
        return False
    kept = [message for span in spans if span.kind == "equal" for message in _kept(span, old)]
    has_reply = any(_num_chars(message) >= _MIN_REPLY_CHARS for message in _replies(tuple(kept)))
    if not has_reply:
        return False
    if is_summary(new.messages[:3]):
        return len(kept) >= _MIN_MATCHED
    return len(kept) >= _MIN_MATCHED_LATE and 2 * len(kept) >= len(old.messages)


def _kept(span: Span, request: Request) -> tuple[Message, ...]:
    return request.messages[span.i1 : span.i2]


def _num_chars(message: Message) -> int:
    return sum(
        len(masked(piece.text)) for piece in message.pieces if piece.kind is not PieceKind.THINKING
    )
