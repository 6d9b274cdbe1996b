"""One finding about one turn, and how grave it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agentkv.doctor.causes import FIXES, TITLES, Cause


class Severity(str, Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Block:
    """The first KV block that differs, counted from 0, of `num_blocks` that could be reused."""

    index: int
    num_blocks: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`turn` counts the session's requests from 1; `line` is the log's, `after_line` the line of
    the request that it is held against.

    `tokens_lost`: tokens that were computed before and are computed again. A hidden finding stands
    behind another one of the same turn and costs nothing of its own until that one is mended.
    """

    severity: Severity
    session: str
    turn: int
    line: int
    after_line: int
    where: str
    cause: Cause
    tokens_lost: int
    is_estimate: bool
    evidence: str
    is_hidden: bool = False
    block: Block | None = None

    @property
    def title(self) -> str:
        return TITLES[self.cause]

    @property
    def fix(self) -> str:
        return FIXES[self.cause]


_NEVER_GRAVE = frozenset({Cause.COMPACTION})
_WITHOUT_TOKENS = frozenset({Cause.HINTS_LOST})


def severity_of(cause: Cause, tokens_lost: float, tokens_known: float) -> Severity:
    """By the share of what could have been reused; a compaction has its reason."""
    if cause in _NEVER_GRAVE:
        return Severity.LOW
    if cause in _WITHOUT_TOKENS:
        return Severity.MEDIUM
    share = tokens_lost / tokens_known if tokens_known > 0 else 0.0
    if share >= 0.5:
        return Severity.HIGH
    return Severity.MEDIUM if share >= 0.1 else Severity.LOW
