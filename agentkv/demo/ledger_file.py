"""Reads the ledger that the plugin writes: one value per pause, with its decisions and its resume.

Why from a file: the demo looks at the engine from outside, as any user can.
Read while the replay runs (for the screen) and once more at its end (for table and picture).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class LedgerDecision:
    """One decision about a pause; `at_s` is wall time."""

    at_s: float
    action: str
    reason: str
    estimate_p50_s: float | None
    break_even_s: float | None


@dataclass(frozen=True, slots=True)
class LedgerResume:
    """What the next turn of the session found; token counts as the engine saw them.

    `request_id` is the engine's: it begins with the id in the reply. `demoted_blocks` were written
    to these tiers below DRAM in the pause, `promoted_tokens` came up from them for this turn.
    """

    at_s: float
    action: str
    tier: str
    prompt_tokens: int
    gpu_hit_tokens: int
    dram_hit_tokens: int
    recomputed_tokens: int
    regret_s: float | None
    request_id: str = ""
    demoted_blocks: Mapping[str, int] = field(default_factory=dict)
    promoted_tokens: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerPause:
    """One pause: after turn `turn` (0-based) of a session."""

    session_id: str
    turn: int
    decisions: tuple[LedgerDecision, ...]
    resume: LedgerResume | None = None

    @property
    def action(self) -> str:
        """The last action decided, as the resume recorded it."""
        return self.resume.action if self.resume else self.decisions[-1].action

    @property
    def reason(self) -> str:
        """The reason of the last decision for that action."""
        reasons = [each.reason for each in self.decisions if each.action == self.action]
        return reasons[-1] if reasons else self.decisions[-1].reason


class LedgerFile:
    """Follows one ledger file; owned by one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._unfinished = b""
        self._pauses: dict[tuple[str, int], LedgerPause] = {}
        self._key_of_id: dict[int, tuple[str, int]] = {}

    def pauses(self) -> dict[tuple[str, int], LedgerPause]:
        """All pauses so far by (session id, turn); reads what was appended since the last call."""
        for record in self._appended():
            self._add(record)
        return self._pauses

    def _appended(self) -> Iterable[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = self._unfinished + file.read()
            self._position = file.tell()
        # The engine may be in the middle of a line.
        *lines, self._unfinished = data.split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]

    def _add(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind in ("pause", "redecide"):
            self._add_decision(record)
        elif kind == "resume" and record["pause_id"] in self._key_of_id:
            key = self._key_of_id[record["pause_id"]]
            self._pauses[key] = replace(self._pauses[key], resume=_resume(record))

    def _add_decision(self, record: dict[str, Any]) -> None:
        key = (record["session_id"], record["turn"])
        self._key_of_id[record["pause_id"]] = key
        known = self._pauses.get(key)
        earlier = known.decisions if known is not None and record["kind"] == "redecide" else ()
        self._pauses[key] = LedgerPause(
            session_id=key[0], turn=key[1], decisions=(*earlier, _decision(record))
        )


def _decision(record: dict[str, Any]) -> LedgerDecision:
    return LedgerDecision(
        at_s=record["t"],
        action=record["action"],
        reason=record["reason"],
        estimate_p50_s=record.get("estimate_p50_s"),
        break_even_s=record.get("break_even_s"),
    )


def _resume(record: dict[str, Any]) -> LedgerResume:
    return LedgerResume(
        at_s=record["t"],
        action=record["action"],
        tier=record["tier"],
        prompt_tokens=record["prompt_tokens"],
        gpu_hit_tokens=record["gpu_hit_tokens"],
        dram_hit_tokens=record["dram_hit_tokens"],
        recomputed_tokens=record["recomputed_tokens"],
        regret_s=record.get("regret_s"),
        request_id=record.get("request_id", ""),
        demoted_blocks=record.get("demoted_blocks", {}),
        promoted_tokens=record.get("promoted_tokens", {}),
    )
