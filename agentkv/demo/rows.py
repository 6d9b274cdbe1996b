"""Joins the two replays and the ledger: one row per pause, and the turns whose answers differ.

Why one ruler for both servers: tokens computed again are counted here from what each server says it
found cached, by the same rule; the ledger adds what only the plugin knows (decision, reason, tier).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agentkv.demo.ledger_file import LedgerPause
from agentkv.demo.replay import PlayedTurn, Replay
from agentkv.demo.workload import PlannedSession, Workload


@dataclass(frozen=True, slots=True)
class PauseRow:
    """One pause, from the end of `turn` (0-based) to the resume. Ledger fields may be missing."""

    session: str
    turn: int
    tool: str | None
    command: str | None
    wait_s: float
    is_wait_cut: bool
    prompt_tokens: int
    known_tokens: int
    ttft_s: float
    ttft_stock_s: float
    reused_tokens: int
    reused_stock_tokens: int
    recomputed_tokens: int
    recomputed_stock_tokens: int
    is_same_answer: bool
    action: str | None = None
    tier: str | None = None
    reason: str | None = None
    estimate_p50_s: float | None = None
    break_even_s: float | None = None
    gpu_hit_tokens: int | None = None
    dram_hit_tokens: int | None = None
    demoted_blocks: Mapping[str, int] = field(default_factory=dict, hash=False)
    promoted_tokens: Mapping[str, int] = field(default_factory=dict, hash=False)
    num_decisions: int = 0
    regret_s: float | None = None


def recomputed_tokens(known_tokens: int, cached_tokens: int, block_size: int) -> int:
    """Tokens in full blocks that the session had computed before and that were not found cached."""
    return max(0, known_tokens // block_size * block_size - cached_tokens)


def pause_rows(
    workload: Workload,
    plugin: Replay,
    stock: Replay,
    pauses: Mapping[tuple[str, int], LedgerPause],
    *,
    block_size: int,
) -> list[PauseRow]:
    """One row per pause that was resumed, in the order of the resumes with the plugin."""
    rows = [
        (
            plugin.turns[session.session_id, number + 1].start_s,
            _row(session, number, plugin, stock, pauses, block_size=block_size),
        )
        for session in workload.sessions
        for number in range(len(session.turns) - 1)
    ]
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def named_pauses(
    plugin: Replay, pauses: Iterable[LedgerPause]
) -> dict[tuple[str, int], LedgerPause]:
    """The ledger's pauses by (session, turn) of the replay.

    Joined by the reply that ended each: a client that names no session has another name there.
    """
    by_reply = {
        pause.resume.request_id.rpartition("-")[0]: pause
        for pause in pauses
        if pause.resume is not None
    }
    return {
        (turn.session_id, turn.turn - 1): by_reply[turn.result.reply_id]
        for turn in plugin.turns.values()
        if turn.result.reply_id in by_reply
    }


def mismatched_turns(plugin: Replay, stock: Replay) -> list[tuple[str, int]]:
    """(session id, turn) of every turn whose answers differ, or whose prompts were not as long."""
    return [key for key in plugin.turns if not _is_same(plugin.turns[key], stock.turns[key])]


def _is_same(one: PlayedTurn, other: PlayedTurn) -> bool:
    same_prompt = one.result.prompt_tokens == other.result.prompt_tokens
    return same_prompt and one.result.same_answer(other.result)


def _row(
    session: PlannedSession,
    number: int,
    plugin: Replay,
    stock: Replay,
    pauses: Mapping[tuple[str, int], LedgerPause],
    *,
    block_size: int,
) -> PauseRow:
    paused, resumed = session.turns[number], session.turns[number + 1]
    with_plugin = plugin.turns[session.session_id, number + 1]
    without = stock.turns[session.session_id, number + 1]
    known = resumed.known_tokens
    cached, cached_stock = with_plugin.result.cached_tokens, without.result.cached_tokens
    row = PauseRow(
        session=session.session_id,
        turn=number,
        tool=paused.tool,
        command=paused.command,
        wait_s=paused.wait_s,
        is_wait_cut=paused.wait_s < paused.recorded_wait_s,
        prompt_tokens=with_plugin.result.prompt_tokens,
        known_tokens=known,
        ttft_s=with_plugin.result.ttft_s,
        ttft_stock_s=without.result.ttft_s,
        reused_tokens=min(cached, known),
        reused_stock_tokens=min(cached_stock, known),
        recomputed_tokens=recomputed_tokens(known, cached, block_size),
        recomputed_stock_tokens=recomputed_tokens(known, cached_stock, block_size),
        is_same_answer=_is_same(with_plugin, without),
    )
    pause = pauses.get((session.session_id, number))
    return row if pause is None else _with_ledger(row, pause)


def _with_ledger(row: PauseRow, pause: LedgerPause) -> PauseRow:
    resume = pause.resume
    return replace(
        row,
        action=pause.action,
        tier=resume.tier if resume else None,
        reason=pause.reason,
        estimate_p50_s=pause.decisions[-1].estimate_p50_s,
        break_even_s=pause.decisions[-1].break_even_s,
        gpu_hit_tokens=resume.gpu_hit_tokens if resume else None,
        dram_hit_tokens=resume.dram_hit_tokens if resume else None,
        demoted_blocks=resume.demoted_blocks if resume else {},
        promoted_tokens=resume.promoted_tokens if resume else {},
        num_decisions=len(pause.decisions),
        regret_s=resume.regret_s if resume else None,
    )
