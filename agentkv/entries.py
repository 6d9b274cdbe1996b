"""What the ledger says of a decision and of a resume: the fields of its records.

Read by people and by programs (the demo, reports); a field keeps its name and unit.
"""

from __future__ import annotations

from typing import Any

from agentkv.policy import Action, PauseView
from agentkv.sessions import Pause, Session, Turn


def decision_fields(session: Session, pause: Pause, view: PauseView) -> dict[str, Any]:
    """Of records `pause` and `redecide`: what was decided, on what view, and why."""
    decision = pause.decision
    assert decision is not None
    return {
        "pause_id": pause.pause_id,
        "session_id": session.key.name,
        "turn": pause.turn,
        "tool": pause.tag.tool,
        "action": decision.action.value,
        "reason": decision.reason,
        "context_tokens": pause.context_tokens,
        "kv_bytes": view.kv_bytes,
        "estimate_p50_s": view.wait.p50_s,
        "break_even_s": decision.break_even_s,
        "pressure": view.pressure,
        "costs_s": dict(decision.costs_s),
    }


def resume_fields(turn: Turn, pause: Pause, action: Action, wait_s: float) -> dict[str, Any]:
    """Of a `resume` record: which turn came back, after how long, from what."""
    return {
        "pause_id": pause.pause_id,
        "session_id": turn.session.key.name,
        "turn": turn.number,
        "request_id": turn.request_id,
        "wait_s": wait_s,
        "action": action.value,
        "prompt_tokens": turn.prompt_tokens,
    }
