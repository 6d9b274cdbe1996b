"""What a difference costs: tokens that were computed before and are computed again.

Without a tokenizer four letters count as a token, or what the server's own count of the prompt says
a letter is. Of two prompts no more can be used again than the shorter one has.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.doctor.request import Request

BLOCK_TOKENS = 16
"""vLLM's KV block on most platforms: what it keeps and finds again is whole blocks."""

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """`tokens_known`: what could have been used again."""

    tokens_lost: int
    tokens_known: int
    is_estimate: bool = True


NO_COST = Cost(0, 0, is_estimate=False)


def cost_of(old: Request, new: Request, at_char: int) -> Cost:
    """Of a difference after so many letters of the former prompt.

    A difference in the reply to it lies behind them: then the reply's letters are known, too.
    """
    known_chars = min(old.num_chars, new.num_chars)
    if at_char >= old.num_chars:
        known_chars = min(old.num_chars + _reply_chars(old), new.num_chars)
    rate = tokens_per_char(new)
    lost = max(0, known_chars - at_char)
    return Cost(round(lost * rate), round(known_chars * rate))


def _reply_chars(request: Request) -> int:
    message = request.reply.message
    return 0 if message is None else sum(len(p.text) + len(p.name) for p in message.pieces)


def tokens_per_char(request: Request) -> float:
    """From the server's count, where the log has it."""
    counted = request.usage.prompt_tokens
    if counted and request.num_chars:
        return counted / request.num_chars
    return 1 / CHARS_PER_TOKEN
