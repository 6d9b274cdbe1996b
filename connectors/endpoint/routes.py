"""The HTTP API of agentkv, under /v1 and so behind vLLM's check of the API key.

What: events in, sessions and state out. Why: an agent that knows when its tool runs, and when it is
done, knows more than can be learnt from its traffic. Where: attached by `plugin`; errors go through
vLLM's own handlers, which name the field that is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from agentkv.signals import MAX_LEDGER_RECORDS, EventResult

from . import answers
from .answers import MAX_SESSIONS, NoAnswerError
from .counters import Counters
from .engine_link import EngineUnreachableError
from .models import (
    EngineState,
    ErrorReply,
    EventBatch,
    EventBody,
    EventResults,
    LedgerRecord,
    Live,
    Session,
    SessionLedger,
    Sessions,
    State,
)
from .state import Endpoint
from .watching import watch

NO_ANSWER = (
    "The engine did not answer in time. It answers in vLLM's statistics, which do not come to this "
    "process with --disable-log-stats, nor always with --api-server-count above 1."
)
NOT_IN_USE = "agentkv is not the KV connector of this server."

_REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorReply, "description": "The request is wrong; `param` names the field."},
    503: {"model": ErrorReply, "description": "The engine does not answer."},
}
_UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorReply, "description": "No such session, or not the caller's."}
}

Salt = Annotated[
    str | None,
    Header(alias="X-Cache-Salt", description="The cache salt of the sessions, if they have one."),
]
Rank = Annotated[
    int | None,
    Header(
        alias="X-data-parallel-rank",
        ge=0,
        description="The engine that the sessions' requests were sent to, if they named one.",
    ),
]


def _endpoint_of(request: Request) -> Endpoint:
    found: Endpoint = request.app.state.agentkv
    return found


def _caller_of(request: Request) -> str:
    return _endpoint_of(request).callers.caller_of(request.headers)


TheEndpoint = Annotated[Endpoint, Depends(_endpoint_of)]
Caller = Annotated[str, Depends(_caller_of)]

router = APIRouter(prefix="/v1/agentkv", tags=["agentkv"], responses=_REFUSALS)


@router.post("/events")
async def post_events(
    endpoint: TheEndpoint, caller: Caller, body: EventBody, rank: Rank = None
) -> EventResult | EventResults:
    """Tell of a pause, a resume or an end, one event or up to 256 at once.

    An event that is sent again is answered again; give `seq` to have late ones rejected.
    """
    _check_rank(endpoint, rank)
    events = body.events if isinstance(body, EventBatch) else [body]
    with _failures_are_503(endpoint):
        results = await answers.post_events(endpoint, events, caller, rank)
    return EventResults(results=results) if isinstance(body, EventBatch) else results[0]


@router.get("/sessions")
async def get_sessions(
    endpoint: TheEndpoint,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=MAX_SESSIONS)] = 100,
    salt: Salt = None,
) -> Sessions:
    """The caller's sessions, those that were active last first."""
    with _failures_are_503(endpoint):
        found = await answers.list_sessions(endpoint, limit, salt, caller)
        return Sessions(sessions=[Session.model_validate(session) for session in found])


@router.get("/sessions/{session_id:path}", responses=_UNKNOWN)
async def get_session(
    endpoint: TheEndpoint,
    caller: Caller,
    session_id: Annotated[str, Path(min_length=1, max_length=256)],
    salt: Salt = None,
) -> Session:
    """One session of the caller's."""
    with _failures_are_503(endpoint):
        found = await answers.find_session(endpoint, session_id, salt, caller)
        session = None if found is None else Session.model_validate(found)
    if session is None:
        raise HTTPException(404, "No such session.")
    return session


@router.get("/ledger/{session_id:path}", responses=_UNKNOWN, response_model_exclude_unset=True)
async def get_ledger(
    endpoint: TheEndpoint,
    caller: Caller,
    session_id: Annotated[str, Path(min_length=1, max_length=256)],
    limit: Annotated[int, Query(ge=1, le=MAX_LEDGER_RECORDS)] = MAX_LEDGER_RECORDS,
    salt: Salt = None,
) -> SessionLedger:
    """What was decided about a session of the caller's, and what came of it."""
    with _failures_are_503(endpoint):
        found = await answers.find_ledger(endpoint, session_id, limit, salt, caller)
        ledger = None if found is None else SessionLedger.model_validate(found)
    if ledger is None:
        raise HTTPException(404, "No such session.")
    return ledger


@router.get("/state")
async def get_state(endpoint: TheEndpoint) -> State:
    """How full the engines are, and what this API process has seen."""
    with _failures_are_503(endpoint):
        states = await answers.engine_states(endpoint)
        engines = [EngineState.model_validate(state) for state in states]
    return State(engines=engines, endpoint=endpoint.counters)


@router.get("/live", response_model_exclude_unset=True)
async def get_live(
    endpoint: TheEndpoint,
    caller: Caller,
    since: Annotated[
        float, Query(ge=0, allow_inf_nan=False, description="Unix seconds; records after that.")
    ] = 0.0,
    limit: Annotated[int, Query(ge=1, le=MAX_SESSIONS, description="Sessions at most.")] = 100,
    salt: Salt = None,
) -> Live:
    """For those who watch: state, sessions and new ledger records in one answer.

    An engine in which nothing happens is not woken for it.
    """
    with _failures_are_503(endpoint):
        seen = await watch(endpoint, since, limit, salt, caller)
        return Live(
            now_s=time.time(),
            as_of_s=seen.as_of_s,
            started_s=endpoint.started_s,
            engines=[EngineState.model_validate(state) for state in seen.engines],
            endpoint=Counters(**endpoint.counters.model_dump()),  # All of them count as set.
            sessions=[Session.model_validate(session) for session in seen.sessions],
            records=[LedgerRecord.model_validate(record) for record in seen.records],
            is_cut=seen.is_cut,
        )


@contextmanager
def _failures_are_503(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except NoAnswerError as error:
        raise HTTPException(503, NOT_IN_USE if endpoint.link is None else NO_ANSWER) from error
    except EngineUnreachableError as error:
        endpoint.counters.problem("asking the engine", error)
        raise HTTPException(503, "The engine cannot be reached.") from error
    except ValidationError as error:
        endpoint.counters.problem("reading the engine's answer", error)
        raise HTTPException(503, "The engine's answer was not understood.") from error


def _check_rank(endpoint: Endpoint, rank: int | None) -> None:
    num_ranks = endpoint.link.engines.num_ranks if endpoint.link is not None else 1
    if rank is not None and rank >= num_ranks:
        raise RequestValidationError(
            [
                {
                    "type": "less_than",
                    "loc": ("header", "X-data-parallel-rank"),
                    "msg": f"Input should be less than {num_ranks}, the number of engines",
                    "input": rank,
                }
            ]
        )
