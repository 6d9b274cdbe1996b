"""What the routes ask of the engines, and how several answers become one.

What: events go to the engine their session lives on, or to all of them where nobody knows; what one
engine accepted is accepted. Why: with data parallelism a session lives on one engine, which the
client chose (X-data-parallel-rank) or which vLLM chose without telling anyone.
Where: between `routes` and `engine_link`. A message whose reply did not come back is `deferred`:
with `--api-server-count` above 1 the reply of a busy engine may land in another API process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

from agentkv.scope import scope_of_salt
from agentkv.signals import (
    ControlMessage,
    ControlReply,
    Event,
    EventResult,
    LedgerQuery,
    ScopedEvent,
    SessionQuery,
    Status,
)

from .engine_link import EngineLink
from .ownership import NOBODY, Claim, Name
from .state import Endpoint

EVENTS_TIMEOUT_S = 0.25
QUERY_TIMEOUT_S = 2.0
MAX_SESSIONS = 1000

DEFERRED = EventResult(status=Status.DEFERRED, detail="sent; the engine has not confirmed it yet")
UNKNOWN = EventResult(status=Status.UNKNOWN, detail="no such session")
UNSUPPORTED = EventResult(
    status=Status.UNSUPPORTED, detail="agentkv is not the KV connector of this server"
)

# Of one event's results from several engines the first in this order counts.
_ORDER = (
    Status.ACCEPTED,
    Status.DEFERRED,
    Status.REJECTED,
    Status.UNSUPPORTED,
    Status.UNKNOWN,
)


class NoAnswerError(Exception):
    """An engine did not answer a query in time."""


async def post_events(
    endpoint: Endpoint, events: Sequence[Event], caller: str, rank: int | None
) -> list[EventResult]:
    """Have the events applied; a result for each. Raises EngineUnreachableError."""
    endpoint.counters.events_received += len(events)
    link = endpoint.link
    if link is None:
        return [UNSUPPORTED] * len(events)
    by_rank: dict[int, list[int]] = {}
    scoped: list[ScopedEvent] = []
    for index, event in enumerate(events):
        claims = _claims_on(endpoint, event)
        is_allowed = all(_is_allowed(endpoint, claim, caller) for claim in claims)
        scope = scope_of_salt(event.cache_salt) if is_allowed else NOBODY
        scoped.append(ScopedEvent(event=_without_salt(event), scope=scope))
        ranks = [rank, *(claim.rank for claim in claims if claim is not None and is_allowed)]
        known_rank = next((each for each in ranks if each is not None), None)
        for each in link.ranks(known_rank):
            by_rank.setdefault(each, []).append(index)
    messages = {
        each: ControlMessage(id="", events=tuple(scoped[index] for index in indices))
        for each, indices in by_rank.items()
    }
    replies = await link.ask(messages, EVENTS_TIMEOUT_S)
    found: list[list[EventResult]] = [[] for _ in events]
    for each, indices in by_rank.items():
        for index, result in zip(indices, _results(replies[each], len(indices)), strict=True):
            found[index].append(result)
    return [min(results, key=lambda result: _ORDER.index(result.status)) for results in found]


async def find_session(
    endpoint: Endpoint, session_id: str, salt: str | None, caller: str
) -> dict[str, Any] | None:
    """One session, None if there is none or it is not the caller's.

    Raises NoAnswerError, EngineUnreachableError.
    """
    scope = _scope_for(endpoint, session_id, salt, caller)
    query = SessionQuery(scope=scope, session_id=session_id, limit=1)
    answers = await ask_engines(endpoint, sessions=query)
    return next((found for _, reply in answers for found in reply.sessions or ()), None)


async def find_ledger(
    endpoint: Endpoint, session_id: str, limit: int, salt: str | None, caller: str
) -> dict[str, Any] | None:
    """What was decided about one session, the newest `limit` records, oldest first.

    `state` is None where the session has ended. None if nothing is known of it, or it is not the
    caller's. Raises NoAnswerError, EngineUnreachableError.
    """
    scope = _scope_for(endpoint, session_id, salt, caller)
    answers = await ask_engines(
        endpoint,
        sessions=SessionQuery(scope=scope, session_id=session_id, limit=1),
        ledger=LedgerQuery(scope=scope, session_id=session_id, limit=limit),
    )
    states = [found.get("state") for _, reply in answers for found in reply.sessions or ()]
    records = [record for _, reply in answers for record in reply.ledger or ()]
    if not states and not records:
        return None
    records.sort(key=lambda record: record.get("t", 0.0))
    state = states[0] if states else None
    return {"session_id": session_id, "state": state, "records": records[-limit:]}


async def list_sessions(
    endpoint: Endpoint, limit: int, salt: str | None, caller: str
) -> list[dict[str, Any]]:
    """The caller's sessions. Raises NoAnswerError, EngineUnreachableError.

    Where keys tell callers apart they are picked from the MAX_SESSIONS that were active last.
    """
    scope = scope_of_salt(salt)
    are_told_apart = endpoint.callers.are_told_apart
    query = SessionQuery(scope=scope, limit=MAX_SESSIONS if are_told_apart else limit)
    answers = await ask_engines(endpoint, sessions=query)
    return owned(endpoint, sessions_in_turn(answers), scope, caller)[:limit]


async def engine_states(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The state of every engine. Raises NoAnswerError, EngineUnreachableError."""
    answers = await ask_engines(endpoint, wants_state=True)
    return [state_of(endpoint, rank, reply) for rank, reply in answers]


def state_of(endpoint: Endpoint, rank: int, reply: ControlReply) -> dict[str, Any]:
    """What an engine said of itself, and how full its tiers are."""
    first_index = 0 if endpoint.link is None else endpoint.link.engines.first_index
    tiers = endpoint.tiers.of_engine(first_index + rank)
    return {**(reply.state or {}), "rank": rank, "tiers": tiers}


def sessions_in_turn(answers: Iterable[tuple[int, ControlReply]]) -> list[dict[str, Any]]:
    """The sessions of all engines, the first of each before the second of any."""
    by_engine = [reply.sessions or () for _, reply in answers]
    in_turn = chain.from_iterable(zip_longest(*by_engine))
    return [session for session in in_turn if session is not None]


def owned(
    endpoint: Endpoint, rows: Iterable[dict[str, Any]], scope: str, caller: str
) -> list[dict[str, Any]]:
    """The sessions, or records of sessions, that are the caller's."""
    if not endpoint.callers.are_told_apart:
        return list(rows)
    return [row for row in rows if _owns(endpoint, row, scope, caller)]


async def ask_engines(endpoint: Endpoint, **content: Any) -> list[tuple[int, ControlReply]]:
    """All engines the same, by rank. Raises NoAnswerError, EngineUnreachableError."""
    link = _link_of(endpoint)
    message = ControlMessage(id="", **content)
    replies = await link.ask(dict.fromkeys(link.ranks(None), message), QUERY_TIMEOUT_S)
    answers = [(rank, reply) for rank, reply in replies.items() if reply is not None]
    if len(answers) < len(replies):
        raise NoAnswerError
    return answers


def _scope_for(endpoint: Endpoint, session_id: str, salt: str | None, caller: str) -> str:
    """The scope to ask in: one that nobody has where the session is not the caller's."""
    scope = scope_of_salt(salt)
    claim = endpoint.sessions.of(Name(scope, session_id))
    return scope if _is_allowed(endpoint, claim, caller) else NOBODY


def _link_of(endpoint: Endpoint) -> EngineLink:
    if endpoint.link is None:
        raise NoAnswerError
    return endpoint.link


def _claims_on(endpoint: Endpoint, event: Event) -> list[Claim | None]:
    """On all that it names: it must not reach by one name what the other would refuse."""
    scope = scope_of_salt(event.cache_salt)
    claims: list[Claim | None] = []
    if event.session_id is not None:
        claims.append(endpoint.sessions.of(Name(scope, event.session_id)))
    if event.request_id is not None:
        claims.append(endpoint.replies.of(Name(scope, event.request_id)))
    return claims


def _is_allowed(endpoint: Endpoint, claim: Claim | None, caller: str) -> bool:
    """Unclaimed is not the caller's either: it may be another's, served by another process."""
    if not endpoint.callers.are_told_apart:
        return True
    return claim is not None and claim.caller == caller


def _owns(endpoint: Endpoint, row: dict[str, Any], scope: str, caller: str) -> bool:
    name = Name(scope, str(row.get("session_id")))
    return _is_allowed(endpoint, endpoint.sessions.of(name), caller)


def _without_salt(event: Event) -> Event:
    """The salt is a secret, and the engine is told its scope."""
    return event.model_copy(update={"cache_salt": None}) if event.cache_salt else event


def _results(reply: ControlReply | None, num_events: int) -> Iterable[EventResult]:
    """A result per event; all words for an unknown session are the same."""
    if reply is None or len(reply.results) != num_events:
        return [DEFERRED] * num_events
    return [UNKNOWN if r.status is Status.UNKNOWN else r for r in reply.results]
