"""What the ledger says of a decision and of a resume: the fields of its records.

Read by people and by programs (`agentkv explain`, the demo); a field keeps its name and unit. A
command is there by its class only: commands carry paths, names and secrets.
"""

from __future__ import annotations

from typing import Any

from agentkv.policy import Action, PauseView
from agentkv.predict.commands import classify_command
from agentkv.regret import expected_costs_s
from agentkv.sessions import Pause, Session, Turn


def decision_fields(session: Session, pause: Pause, view: PauseView) -> dict[str, Any]:
    """Of records `pause` and `redecide`: what was decided, on what view, and why.

    `costs_s` are the policy's own (`costs_by`: policy) or, where it gave none, what each action
    costs if the wait is its median (median).
    """
    decision = pause.decision
    assert decision is not None
    costs_s = dict(decision.costs_s)
    return {
        "pause_id": pause.pause_id,
        "scope": session.key.scope,
        "session_id": session.key.name,
        "turn": pause.turn,
        "tool": pause.tag.tool,
        "command_class": _command_class(pause.tag.command),
        "age_s": view.age_s,
        "action": decision.action.value,
        "reason": decision.reason,
        **_estimate_fields(view),
        "context_tokens": pause.context_tokens,
        "kv_bytes": view.kv_bytes,
        "recompute_s": view.recompute_s,
        "reload_s": view.reload_s,
        "store_s": view.store_s,
        "running_bytes": view.running_bytes,
        "dram_bytes_missing": view.dram_bytes_missing,
        "pressure": view.pressure,
        "price_hbm": view.prices.hbm,
        "price_dram": view.prices.dram,
        "break_even_s": decision.break_even_s,
        "costs_s": costs_s or expected_costs_s(view),
        "costs_by": "policy" if costs_s else "median",
        "keep_value": decision.keep_value,
        "review_in_s": decision.review_in_s,
    }


def _estimate_fields(view: PauseView) -> dict[str, Any]:
    """What was known of the rest of the wait."""
    wait = view.wait
    return {
        "estimate_p10_s": wait.p10_s,
        "estimate_p50_s": wait.p50_s,
        "estimate_p90_s": wait.p90_s,
        "estimate_source": wait.source,
        "num_observed": wait.num_observed,
        "confidence": wait.confidence,
        "chance_ended": wait.chance_ended,
    }


def _command_class(command: str | None) -> str | None:
    return classify_command(command).name if command else None


def resume_fields(turn: Turn, pause: Pause, action: Action, wait_s: float) -> dict[str, Any]:
    """Of a `resume` record: which turn came back, after how long, from what."""
    return {
        "pause_id": pause.pause_id,
        "scope": turn.session.key.scope,
        "session_id": turn.session.key.name,
        "turn": turn.number,
        "request_id": turn.request_id,
        # By now: a tool that nobody named may have shown in the reply, after the decision.
        "tool": pause.tag.tool,
        "command_class": _command_class(pause.tag.command),
        "wait_s": wait_s,
        "action": action.value,
        "prompt_tokens": turn.prompt_tokens,
    }
