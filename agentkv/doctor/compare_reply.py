"""Whether the model's own reply came back as it was: needs a log that has replies or counts."""

from __future__ import annotations

from agentkv.doctor.alignment import leading_run
from agentkv.doctor.causes import Cause
from agentkv.doctor.compare_messages import is_same_order, message_change
from agentkv.doctor.difference import Difference
from agentkv.doctor.request import Message, Piece, PieceKind, Request

BLOCK_TOKENS = 16
_MIN_REPLY_TOKENS = 64
_MIN_GONE_TOKENS = 256


def reply_difference(old: Request, new: Request) -> Difference | None:
    """Between the reply to `old` and what `new` says it was, in a history that goes on."""
    if old.reply.message is None:
        return None
    resent = _reply_in(new, len(old.messages))
    found = message_change(old.reply.message, resent) if resent is not None else None
    if found is None or resent is None:
        return None
    cause, offset, said = found
    if cause is Cause.SERIALISATION and _is_only_whitespace(old.reply.message, resent):
        return None
    where = f"messages[{len(old.messages)}] (reply)"
    return Difference(cause, where, old.num_chars + offset, said)


def _reply_in(request: Request, index: int) -> Message | None:
    """The assistant's messages from `index` on, as one."""
    pieces: list[Piece] = []
    is_marked = False
    for message in request.messages[index:]:
        if message.role != "assistant":
            break
        pieces.extend(message.pieces)
        is_marked = is_marked or message.is_marked
    return Message("assistant", tuple(pieces), is_marked) if pieces else None


def _is_only_whitespace(old: Message, new: Message) -> bool:
    """Arguments of calls are parsed before a template prints them; what the model wrote is not
    known from the reply, so that only another order of keys is worth a word."""
    calls = zip(
        [piece.text for piece in old.pieces if piece.kind is PieceKind.CALL],
        [piece.text for piece in new.pieces if piece.kind is PieceKind.CALL],
        strict=False,
    )
    return all(a == b or is_same_order(a, b) for a, b in calls)


def tokens_difference(old: Request, new: Request) -> tuple[Cause, int, int] | None:
    """By token ids: the class, the first token that differs, the tokens that were known.

    Where the reply's ids are known they count as known; None where the prompt goes on from them.
    """
    known = (*old.prompt_ids, *old.reply.token_ids)
    if not old.prompt_ids or not new.prompt_ids:
        return None
    common = leading_run(known, new.prompt_ids)
    # The reply's last token is never computed, and a block counts only whole.
    if common // BLOCK_TOKENS >= min(len(known) - 1, len(new.prompt_ids)) // BLOCK_TOKENS:
        return None
    is_in_reply = common >= len(old.prompt_ids)
    return Cause.RETOKENISED if is_in_reply else Cause.TEMPLATE_REWRITES, common, len(known)


def count_difference(old: Request, new: Request) -> tuple[Cause, int, int] | None:
    """By the server's own counts, where the prompt is unchanged: class, tokens found, known."""
    prompt, found = old.usage.prompt_tokens, new.usage.cached_tokens
    if prompt is None or found is None:
        return None
    reply = old.usage.completion_tokens or 0
    known = prompt + reply
    if found < prompt // 2 and prompt - found >= _MIN_GONE_TOKENS:
        return Cause.KV_GONE, found, known
    is_at_end_of_prompt = prompt - 2 * BLOCK_TOKENS <= found <= prompt + reply // 4
    if reply >= _MIN_REPLY_TOKENS and is_at_end_of_prompt:
        return Cause.RETOKENISED, found, known
    return None
