"""Texts with what may change masked, what kind of thing changed, and evidence without secrets."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from agentkv.doctor.request import Message, Piece, PieceKind

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_DATE = (
    r"\d{4}[-/]\d{1,2}[-/]\d{1,2}|\b\d{1,2}:\d{2}(?::\d{2})?\b|"
    r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b|"
    r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? \d{1,2}\b"
)
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a billing line", re.compile(r"x-anthropic-billing-header")),
    ("a date or time", re.compile(_DATE)),
    ("a uuid", re.compile(_UUID)),
    ("a hash or id", re.compile(r"\b(?=[0-9a-zA-Z_]*\d)[0-9a-zA-Z_]{8,}\b")),
    ("a directory or path", re.compile(r"(?:^|[\s\"'`=(:])(?:~|[A-Za-z]:)?[/\\][\w./\\-]+")),
    ("a number", re.compile(r"\d")),
)
_NOISE = re.compile(rf"{_UUID}|\b[0-9a-f]{{7,}}\b|\d+")
_SPACE = re.compile(r"\s+")
_SECRET = re.compile(
    r"(?i)(\b(?:sk|pk|ghp|gho|glpat|xox[a-z]|hf|AKIA|eyJ)[-_]?[\w.-]{8,}|"
    r"(?<=bearer )\S+|(?<=basic )\S+|"
    r"(?<![\w])(?:api[-_]?key|token|secret|password|passwd|authorization)\b[\"']?\s*[:=]\s*[\"']?"
    r"(?!bearer |basic )[^\s\"',;]+|://[^\s/:@]+:[^\s/@]+(?=@)|(?<![\w-])(?=[\w+-]*\d)[A-Za-z0-9+_-]{24,}={0,2})"
)
_MAX_EVIDENCE_CHARS = 60
_MAX_WORD_CHARS = 24


@lru_cache(maxsize=65_536)
def masked(text: str) -> str:
    """The text without whitespace, numbers, uuids and hashes: equal for what is much the same."""
    return _SPACE.sub("", _NOISE.sub("#", text))


@lru_cache(maxsize=65_536)
def parsed_key(text: str) -> str | None:
    """One writing of a JSON object or list, however it is written; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def message_key(message: Message) -> int:
    """Equal for messages that say much the same, with or without thinking, ids and markers."""
    pieces = [piece for piece in message.pieces if piece.kind is not PieceKind.THINKING]
    role = "head" if message.role in ("system", "developer") else message.role
    if all(piece.kind is PieceKind.TEXT for piece in pieces):
        return hash((role, masked("".join(piece.text for piece in pieces))))
    return hash((role, tuple(map(_piece_key, pieces))))


def _piece_key(piece: Piece) -> tuple[str, str, str]:
    if piece.kind is PieceKind.MEDIA:
        return (piece.kind.value, "", "")
    return (piece.kind.value, piece.name, masked(parsed_key(piece.text) or piece.text))


def kind_of_change(old: str, new: str) -> str:
    """What two differing lines differ in, in words."""
    for words, pattern in _KINDS:
        if pattern.search(old) and pattern.search(new) and _found(pattern, old, new):
            return words
    return "a text"


def _found(pattern: re.Pattern[str], old: str, new: str) -> bool:
    """Whether what the pattern finds is what differs."""
    return pattern.findall(old) != pattern.findall(new) or pattern.pattern.startswith("x-")


def evidence(old: str, new: str) -> str:
    """What stood there and what stands there now, short, from the first difference on."""
    old, new = without_secrets(old), without_secrets(new)
    start = _word_before(old, common_chars(old, new))
    return f"{_short(old, start)} → {_short(new, start)}"


def _word_before(text: str, at_char: int) -> int:
    """Where the word begins in which the letter stands, or a bit before it."""
    found = max(text.rfind(space, 0, at_char) for space in " \n") + 1
    return found if at_char - found <= _MAX_WORD_CHARS else at_char - _MAX_WORD_CHARS // 2


def quoted(text: str) -> str:
    """The beginning of a text."""
    return _short(without_secrets(text), 0)


def without_secrets(text: str) -> str:
    return _SECRET.sub(lambda match: match[0][:4] + "…", text[:20_000])


def _short(text: str, start: int) -> str:
    part = _SPACE.sub(" ", text[start : start + _MAX_EVIDENCE_CHARS + 1])
    head = "…" if start else ""
    tail = "…" if len(part) > _MAX_EVIDENCE_CHARS else ""
    return f'"{head}{part[:_MAX_EVIDENCE_CHARS]}{tail}"'


def common_chars(old: str, new: str) -> int:
    """How many letters two texts have in common at the beginning; O(log n) comparisons of C."""
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low
