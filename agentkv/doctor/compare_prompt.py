"""Two requests as the chat template prints them: where they part, in letters, tokens and blocks."""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.doctor.alignment import leading_run
from agentkv.doctor.causes import Cause
from agentkv.doctor.difference import Difference
from agentkv.doctor.finding import Block
from agentkv.doctor.masks import common_chars, evidence
from agentkv.doctor.request import PieceKind, Request
from agentkv.doctor.template import Template

CHARS_PER_TOKEN = 4
_HEAD_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Prompt:
    request: Request
    text: str


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the later prompt leaves the former: letters and tokens in common, tokens lost of those
    that could have been used again. `block` is None without a tokenizer."""

    at_char: int
    tokens_lost: int
    tokens_known: int
    block: Block | None


def parting(template: Template, old: Prompt, new: Prompt, block_tokens: int) -> Parting | None:
    """None where the later prompt begins with all of the former."""
    # What closes the last message may be printed otherwise when another follows.
    former = old.text.rstrip()
    at_char = common_chars(former, new.text)
    if at_char == len(former):
        return None
    if not template.has_tokenizer:
        known = min(len(former), len(new.text)) // CHARS_PER_TOKEN
        return Parting(at_char, max(0, known - at_char // CHARS_PER_TOKEN), known, None)
    ids, later = template.tokens(former), template.tokens(new.text)
    token = leading_run(tuple(ids), tuple(later))
    known = min(len(ids), len(later))
    index = token // block_tokens
    block = Block(index, known // block_tokens, token)
    return Parting(at_char, max(0, known - index * block_tokens), known, block)


def template_difference(old: Prompt, new: Prompt, at_char: int) -> Difference:
    """Why a template prints a history in another way that came back unchanged."""
    said = evidence(_from(old.text, at_char), _from(new.text, at_char))
    if _lost_thinking(old, new):
        return Difference(Cause.DROPPED_THINKING, "chat template", at_char, said)
    if _is_hoisted(old, new):
        return Difference(Cause.HOISTED_NOTES, "chat template", at_char, said)
    return Difference(Cause.TEMPLATE_REWRITES, "chat template", at_char, said)


def _from(text: str, at_char: int) -> str:
    return text[max(0, at_char - 20) : at_char + 200]


def _lost_thinking(old: Prompt, new: Prompt) -> bool:
    """Whether thinking that the former prompt had is not in the later one."""
    return any(
        (text := piece.text.strip()) in old.text and text not in new.text
        for message in old.request.messages
        for piece in message.pieces
        if piece.kind is PieceKind.THINKING and piece.text.strip()
    )


def _is_hoisted(old: Prompt, new: Prompt) -> bool:
    """Whether a new note of the conversation stands where the former prompt's history is."""
    notes = [
        text
        for message in new.request.messages[len(old.request.messages) :]
        if message.role in _HEAD_ROLES and (text := message.text_of(PieceKind.TEXT).strip())
    ]
    first = old.request.messages[0].text_of(PieceKind.TEXT).strip() if old.request.messages else ""
    start = new.text.find(first) if first else len(new.text)
    return any(0 <= new.text.find(note) < start for note in notes)
