"""What the control API tells of sessions, their ledger and the engine: plain objects for JSON.

A session's tool is shown, its command is not: commands carry paths, names and secrets.
"""

from __future__ import annotations

from typing import Any

from agentkv.controller import Controller
from agentkv.ledger import Ledger
from agentkv.sessions import Pause, Session, SessionKey
from agentkv.signals import LedgerQuery, SessionQuery

_MAX_TEXT_CHARS = 400

_FEED_KINDS = frozenset({"pause", "redecide", "resume", "end"})
_FEED_FIELDS = (
    *("kind", "t", "session_id", "pause_id", "turn", "tool", "command_class", "action", "age_s"),
    *("estimate_p10_s", "estimate_p50_s", "estimate_p90_s", "context_tokens", "kv_bytes"),
    *("wait_s", "tier", "recomputed_tokens", "regret_s"),
)


def sessions_matching(
    controller: Controller, query: SessionQuery, now_s: float
) -> tuple[dict[str, Any], ...]:
    """The sessions of one tenant, the one that was active last first."""
    tracker = controller.sessions
    if query.session_id is not None:
        session = tracker.get(SessionKey(query.scope, query.session_id))
        if session is None:
            return ()
        refs = tracker.all_blocks(session)
        kv_tokens = dict(controller.tokens_by_tier(refs))
        return ({**describe(session, now_s), "kv_tokens": kv_tokens},)
    found: list[dict[str, Any]] = []
    for session in reversed(tracker):
        if len(found) == query.limit:
            break
        if session.key.scope == query.scope:
            found.append(describe(session, now_s))
    return tuple(found)


def ledger_of(ledger: Ledger, query: LedgerQuery) -> tuple[dict[str, Any], ...]:
    """The newest records of one tenant, oldest first; long texts are cut.

    Of one session whole, of all of them the feed; see `LedgerQuery`.
    """
    if query.session_id is None:
        return tuple(_feed(ledger, query))
    found = ledger.of_session(query.scope, query.session_id, limit=query.limit)
    return tuple(
        {key: _cut(value) for key, value in record.items() if key != "scope"} for record in found
    )


def _feed(ledger: Ledger, query: LedgerQuery) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for record in reversed(ledger.records()):
        if record["t"] <= query.since_s or len(found) == query.limit:
            break
        if record["kind"] in _FEED_KINDS and record.get("scope") == query.scope:
            found.append({key: _cut(record[key]) for key in _FEED_FIELDS if key in record})
    return found[::-1]


def _cut(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > _MAX_TEXT_CHARS
    return value[: _MAX_TEXT_CHARS - 1] + "…" if is_long else value


def describe(session: Session, now_s: float) -> dict[str, Any]:
    """One session; seconds count from now."""
    return {
        "session_id": session.key.name,
        "state": session.state.value,
        "num_turns": session.num_turns,
        "context_tokens": session.context_tokens,
        "is_inferred": session.is_inferred,
        "idle_s": round(now_s - session.last_active_s, 3),
        "pause": None if session.pause is None else _describe_pause(session.pause, now_s),
    }


def _describe_pause(pause: Pause, now_s: float) -> dict[str, Any]:
    decision = pause.decision
    return {
        "tool": pause.tag.tool,
        "since_s": round(now_s - pause.started_s, 3),
        "expected_wait_s": pause.tag.expected_wait_s,
        "returns_in_s": round(max(0.0, pause.returns_at_s - now_s), 3),
        "is_tool_done": pause.tool_done_s is not None,
        "action": decision.action.value if decision is not None else None,
        "reason": decision.reason if decision is not None else None,
        "is_given_up": pause.is_given_up,
        "parked_in": pause.parked_in,
    }


def engine_state(controller: Controller, **pool: int) -> dict[str, Any]:
    """Numbers of the whole engine; names no session."""
    counts = controller.sessions.count_by_state()
    return {
        "sessions": {state.value: count for state, count in counts.items()},
        "pressure": round(controller.appraiser.pressure, 4),
        "pauses_away": controller.pauses.num_away,
        **pool,
    }
