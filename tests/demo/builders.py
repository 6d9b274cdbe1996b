"""Values of the demo, made by hand: every field can be overridden, none needs an engine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.demo.client import Message, TurnResult
from agentkv.demo.ratios import RatioSample
from agentkv.demo.replay import PlayedTurn, Replay
from agentkv.demo.workload import PlannedSession, PlannedTurn, Workload

BEGAN_AT_S = 1_000.0


def result(**fields: Any) -> TurnResult:
    defaults: dict[str, Any] = {
        "ttft_s": 0.1,
        "total_s": 0.2,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "text": "answer",
        "token_ids": (1, 2),
    }
    return TurnResult(**{**defaults, **fields})


def planned(**fields: Any) -> PlannedTurn:
    messages: tuple[Message, ...] = ({"role": "user", "content": "hello"},)
    defaults: dict[str, Any] = {
        "messages": messages,
        "prompt_tokens": 100,
        "known_tokens": 64,
        "wait_s": 1.0,
        "recorded_wait_s": 1.0,
        "tool": "bash",
        "command": "pytest -q",
    }
    return PlannedTurn(**{**defaults, **fields})


def workload(*sessions: PlannedSession) -> Workload:
    notes = {"statement": "made by hand", "max_wait_s": 6.0, "waits_cut": 1, "waits_total": 2}
    notes["longest_wait_s"] = 51.0
    return Workload(source="test", sessions=sessions, notes=notes)


def session(name: str, *turns: PlannedTurn) -> PlannedSession:
    return PlannedSession(session_id=name, turns=turns)


def replay(results: Mapping[tuple[str, int], TurnResult]) -> Replay:
    """Turns two seconds apart, each half a second long."""
    turns = {
        key: PlayedTurn(
            key[0], key[1], start_s=2.0 * key[1], end_s=2.0 * key[1] + 0.5, result=value
        )
        for key, value in results.items()
    }
    return Replay(began_at_s=BEGAN_AT_S, duration_s=10.0, turns=turns)


def sample(kind: str, number: int = 0, **fields: Any) -> RatioSample:
    turn = fields.pop("turn", 0)
    known_tokens = fields.pop("known_tokens", 4200)
    return RatioSample(kind, number, turn, result(**fields), known_tokens)


def pause_record(**fields: Any) -> dict[str, Any]:
    """A line of the ledger as the engine writes it."""
    return {
        "kind": "pause",
        "t": BEGAN_AT_S + 0.5,
        "pause_id": 1,
        "session_id": "a",
        "turn": 0,
        "tool": "bash",
        "action": "hold",
        "reason": "nobody waits for blocks: holding is free",
        "context_tokens": 100,
        "kv_bytes": 204_800,
        "estimate_p50_s": 1.5,
        "break_even_s": None,
        "costs_s": {},
        **fields,
    }


def resume_record(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "resume",
        "t": BEGAN_AT_S + 2.0,
        "pause_id": 1,
        "session_id": "a",
        "turn": 1,
        "request_id": "r",
        "wait_s": 1.5,
        "action": "hold",
        "prompt_tokens": 100,
        "gpu_hit_tokens": 64,
        "dram_hit_tokens": 0,
        "recomputed_tokens": 0,
        "tier": "gpu",
        "regret_s": 0.0,
        **fields,
    }


def write_ledger(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
