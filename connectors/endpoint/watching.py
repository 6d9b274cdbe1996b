"""All that somebody who watches needs, with one question to the engines or none.

What: state, sessions and the new ledger records of the caller's sessions in one answer. Why: three
questions would be three steps of the engine; polled sessions alone would miss the pauses that begin
and end between two polls. Where: between `routes` and `answers`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from agentkv.scope import scope_of_salt
from agentkv.signals import MAX_FEED_RECORDS, ControlReply, LedgerQuery, SessionQuery

from .answers import MAX_SESSIONS, ask_engines, owned, sessions_in_turn, state_of
from .last_answers import Answer
from .state import Endpoint


@dataclass(frozen=True, slots=True)
class Watched:
    """`as_of_s`: Unix seconds, when the engines said it. `is_cut`: older records were left out."""

    as_of_s: float
    engines: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    records: list[dict[str, Any]]
    is_cut: bool


async def watch(
    endpoint: Endpoint, since_s: float, limit: int, salt: str | None, caller: str
) -> Watched:
    """The caller's sessions, the `limit` last active ones, and their records after `since_s`.

    Raises NoAnswerError, EngineUnreachableError.
    """
    scope = scope_of_salt(salt)
    asked = MAX_SESSIONS if endpoint.callers.are_told_apart else limit
    answer = _last_answer(endpoint, scope, since_s, asked)
    if answer is None:
        answer = await _ask(endpoint, scope, since_s, asked)
        endpoint.last.keep(scope, answer)
    records, is_cut = _records(answer, since_s)
    return Watched(
        as_of_s=answer.as_of_s,
        engines=[state_of(endpoint, rank, reply) for rank, reply in answer.replies],
        sessions=owned(endpoint, sessions_in_turn(answer.replies), scope, caller)[:limit],
        records=owned(endpoint, records, scope, caller),
        is_cut=is_cut,
    )


def _last_answer(endpoint: Endpoint, scope: str, since_s: float, limit: int) -> Answer | None:
    if endpoint.link is None:
        return None
    now_s = time.monotonic()
    return endpoint.last.find(
        scope,
        since_s=since_s,
        limit=limit,
        now_s=now_s,
        active_s=endpoint.activity.last_s(now_s),
        num_unasked=endpoint.link.num_unasked,
    )


async def _ask(endpoint: Endpoint, scope: str, since_s: float, limit: int) -> Answer:
    num_unasked = 0 if endpoint.link is None else endpoint.link.num_unasked
    asked_s, as_of_s = time.monotonic(), time.time()
    replies: list[tuple[int, ControlReply]] = await ask_engines(
        endpoint,
        wants_state=True,
        sessions=SessionQuery(scope=scope, limit=limit),
        ledger=LedgerQuery(scope=scope, since_s=since_s, limit=MAX_FEED_RECORDS),
    )
    return Answer(replies, since_s, limit, asked_s, as_of_s, num_unasked)


def _records(answer: Answer, since_s: float) -> tuple[list[dict[str, Any]], bool]:
    """Those after `since_s` of all engines, oldest first; whether older ones were left out."""
    by_engine = [reply.ledger or () for _, reply in answer.replies]
    found = [record for records in by_engine for record in records if record["t"] > since_s]
    found.sort(key=lambda record: float(record["t"]))
    is_cut = any(len(records) >= MAX_FEED_RECORDS for records in by_engine)
    return found[-MAX_FEED_RECORDS:], is_cut or len(found) > MAX_FEED_RECORDS
