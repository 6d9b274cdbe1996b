"""What changed in the history: the messages of the former request, as the later one has them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentkv.doctor.alignment import Span, align, is_alike, is_summary
from agentkv.doctor.causes import Cause
from agentkv.doctor.difference import Difference
from agentkv.doctor.masks import (
    common_chars,
    evidence,
    kind_of_change,
    masked,
    parsed_key,
    quoted,
)
from agentkv.doctor.request import Message, Piece, PieceKind, Request, message_chars

_PRINTED = (PieceKind.TEXT, PieceKind.RESULT)


def message_differences(
    old: Request, new: Request, old_keys: tuple[int, ...], new_keys: tuple[int, ...]
) -> Iterator[Difference]:
    """All that keeps the history of `new` from beginning with that of `old`, in its order."""
    starts = _starts(old)
    for span in align(old_keys, new_keys):
        if span.i1 >= len(old.messages):
            return
        if span.kind == "equal":
            for i, j in zip(range(span.i1, span.i2), range(span.j1, span.j2), strict=True):
                yield from _same_message(old.messages[i], new.messages[j], i, starts[i])
        else:
            yield from _other_messages(old, new, span, starts)


def _starts(request: Request) -> list[int]:
    """Letters before each message."""
    num_chars = sum(map(len, request.head)) + sum(len(tool.text) for tool in request.tools)
    starts = []
    for message in request.messages:
        starts.append(num_chars)
        num_chars += message_chars(message)
    return starts


def _same_message(old: Message, new: Message, index: int, at_char: int) -> Iterator[Difference]:
    found = message_change(old, new)
    if found is not None:
        cause, offset, said = found
        yield Difference(cause, _where(index, old), at_char + offset, said)


def _where(index: int, message: Message) -> str:
    kind = "tool result" if message.has(PieceKind.RESULT) else message.role
    return f"messages[{index}] ({kind})"


Change = tuple[Cause, int, str]
"""The class, letters of the message before it, the evidence."""


def message_change(old: Message, new: Message) -> Change | None:
    """How a message came back; None where a template prints it as before."""
    before, after = old.text_of(PieceKind.THINKING), new.text_of(PieceKind.THINKING)
    if before != after:
        if before and not after:
            return Cause.DROPPED_THINKING, 0, f"gone: {quoted(before)}"
        return Cause.REPLY_REWRITTEN, common_chars(before, after), evidence(before, after)
    return (
        _media_change(old, new)
        or _text_change(old, new)
        or _parts_change(old, new)
        or _call_change(old, new)
    )


def _media_change(old: Message, new: Message) -> Change | None:
    before, after = ([p.text for p in m.pieces if p.kind is PieceKind.MEDIA] for m in (old, new))
    if before == after:
        return None
    said = f"{len(before)} before, {len(after)} now" if len(before) != len(after) else "other bytes"
    return Cause.MEDIA, 0, said


def _text_change(old: Message, new: Message) -> Change | None:
    before, after = ("".join(p.text for p in m.pieces if p.kind in _PRINTED) for m in (old, new))
    if before == after or (after.startswith(before) and new.role == "prompt"):
        return None
    at_char, said = common_chars(before, after), evidence(before, after)
    is_reply = old.role == "assistant"
    if (key := parsed_key(before)) is not None and key == parsed_key(after):
        return Cause.SERIALISATION, at_char, said
    if "".join(before.split()) == "".join(after.split()):
        if old.is_marked != new.is_marked:
            return Cause.CACHE_MARKERS, at_char, f"parts joined in another way: {said}"
        cause = Cause.REPLY_REWRITTEN if is_reply else Cause.SERIALISATION
        return cause, at_char, f"whitespace: {said}"
    if is_reply:
        return Cause.REPLY_REWRITTEN, at_char, said
    if masked(before) == masked(after):
        return Cause.CHANGING_FIELD, at_char, f"{kind_of_change(before, after)}: {said}"
    return Cause.EDITED_HISTORY, at_char, said


def _parts_change(old: Message, new: Message) -> Change | None:
    """Templates print the parts of a message with something between them."""
    before, after = ([p.text for p in m.pieces if p.kind is PieceKind.TEXT] for m in (old, new))
    if before == after:
        return None
    cause = Cause.CACHE_MARKERS if old.is_marked or new.is_marked else Cause.SERIALISATION
    at_char = next((len(a) for a, b in zip(before, after, strict=False) if a != b), 0)
    return cause, at_char, f"the same text in {len(before)} parts, then in {len(after)}"


def _call_change(old: Message, new: Message) -> Change | None:
    before, after = _calls(old), _calls(new)
    for former, later in zip(before, after, strict=False):
        if former.text != later.text:
            is_same = parsed_key(former.text) == parsed_key(later.text) is not None
            cause = Cause.SERIALISATION if is_same else Cause.REPLY_REWRITTEN
            return cause, common_chars(former.text, later.text), evidence(former.text, later.text)
    ids, later_ids = _ids(old), _ids(new)
    if ids != later_ids:
        return Cause.CALL_IDS, 0, evidence(" ".join(ids), " ".join(later_ids))
    return None


def _calls(message: Message) -> list[Piece]:
    return [piece for piece in message.pieces if piece.kind is PieceKind.CALL]


def _ids(message: Message) -> list[str]:
    return [piece.call_id for piece in message.pieces if piece.call_id]


def is_same_order(old: str, new: str) -> bool:
    """Whether two texts are the same JSON with the same order of keys: whitespace apart."""
    try:
        return json.dumps(json.loads(old)) == json.dumps(json.loads(new))
    except (ValueError, RecursionError):
        return False


def _other_messages(
    old: Request, new: Request, span: Span, starts: list[int]
) -> Iterator[Difference]:
    """Messages that are gone, came between or were exchanged."""
    gone, come = old.messages[span.i1 : span.i2], new.messages[span.j1 : span.j2]
    where, at_char = f"messages[{span.i1}]", starts[span.i1]
    is_end = span.i2 == len(old.messages)
    if not gone:
        yield _inserted(old, come, span, at_char)
    elif come and is_alike(gone[0], come[0]) and (is_end or len(gone) == len(come)):
        yield from _edited_message(gone[0], come[0], span, at_char, is_end=is_end)
    elif is_end and len(gone) == 1:
        said = f"gone: {quoted(_words(gone[0]))}"
        yield Difference(Cause.EPHEMERAL_NOTE, _where(span.i1, gone[0]), at_char, said)
    elif come and is_summary(come):
        said = f"{len(gone)} messages became {quoted(_words(come[0]))}"
        yield Difference(Cause.COMPACTION, where, at_char, said)
    elif come and len(gone) == len(come):
        yield from _edited_message(gone[0], come[0], span, at_char, is_end=False)
    else:
        said = f"{len(gone)} messages gone, from {quoted(_words(gone[0]))}"
        yield Difference(Cause.TRIMMED_HISTORY, where, at_char, said)


def _inserted(old: Request, come: tuple[Message, ...], span: Span, at_char: int) -> Difference:
    """New messages before old ones; before the last one only, that one has moved to the end."""
    last = old.messages[-1]
    if span.i1 == len(old.messages) - 1 and come[0].role == "assistant" != last.role:
        said = f"moved to the end: {quoted(_words(last))}"
        return Difference(Cause.EPHEMERAL_NOTE, _where(span.i1, last), at_char, said)
    cause = Cause.COMPACTION if is_summary(come) else Cause.INSERTED_MESSAGE
    where = f"messages[{span.i1}]"
    return Difference(cause, where, at_char, f"new: {quoted(_words(come[0]))}")


def _edited_message(
    old: Message, new: Message, span: Span, at_char: int, *, is_end: bool
) -> Iterator[Difference]:
    found = message_change(old, new)
    if found is None:
        return
    cause, offset, said = found
    if cause is Cause.EDITED_HISTORY and not old.has(PieceKind.RESULT):
        if is_end:
            cause = Cause.EPHEMERAL_NOTE
        elif _is_another(old, new):
            cause = Cause.INSERTED_MESSAGE
    yield Difference(cause, _where(span.i1, old), at_char + offset, said)


def _is_another(old: Message, new: Message) -> bool:
    """Whether a message was exchanged for another one, not cut or extended."""
    before, after = masked(_words(old)), masked(_words(new))
    return common_chars(before, after) < min(len(before), len(after)) // 2


def _words(message: Message) -> str:
    return " ".join(piece.text or piece.name for piece in message.pieces)
