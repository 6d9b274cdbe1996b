"""One replay as a row of numbers: the same for every system, whatever its server is.

What: first-token times of resumed turns, gaps between tokens, throughput, tokens computed again.
Why from the client's side: times and cached tokens are taken by one ruler for all; the server's own
counters (`replay_counters`) only say where the tokens came from.
Where: after each replay; `replay_stats` sums rows up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkv.demo.replay import PlayedTurn, Replay
from agentkv.demo.rows import recomputed_tokens
from agentkv.demo.workload import Workload

HOUR_S = 3600.0
AT_ONCE_S = 0.002


@dataclass(frozen=True, slots=True)
class Played:
    """A replay with what its server counted meanwhile.

    `cpu_s`: of all the server's processes, if known; `others_cpu_share`: the part of the machine
    that processes took which have nothing to do with the replay.
    """

    workload: Workload
    replay: Replay
    counted: Mapping[str, float | None]
    cpu_s: float | None = None
    others_cpu_share: float | None = None


@dataclass(frozen=True, slots=True)
class _Resume:
    turn: PlayedTurn
    known_tokens: int
    pause_s: float


def measure(played: Played, *, block_size: int) -> dict[str, Any]:
    """The measured part of a row; times in seconds, rates per hour, tokens as the server counts."""
    replay = played.replay
    resumes = list(_resumes(replay, played.workload))
    reusable = sum(each.known_tokens // block_size * block_size for each in resumes)
    again = sum(
        recomputed_tokens(each.known_tokens, each.turn.result.cached_tokens, block_size)
        for each in resumes
    )
    hours = replay.duration_s / HOUR_S
    gaps_s = [gap for turn in replay.turns.values() for gap in turn.result.gaps_s]
    return {
        **ttft([each.turn.result.ttft_s for each in resumes]),
        "resume_total_mean_s": _mean([each.turn.result.total_s for each in resumes]),
        "at_once_share": at_once_share(list(replay.turns.values())),
        "itl_p50_s": _percentile(gaps_s, 50),
        "itl_p99_s": _percentile(gaps_s, 99),
        "turns_per_hour": len(replay.turns) / hours,
        "sessions_per_hour": len(played.workload.sessions) / hours,
        "duration_s": replay.duration_s,
        "busy_share": busy_s(replay) / replay.duration_s,
        "resumes": len(resumes),
        "reusable_tokens": reusable,
        "recomputed_tokens": again,
        "recomputed_share": again / reusable if reusable else 0.0,
        "paused_pool_token_s": _paused_token_s(resumes, played.counted),
        "server_cpu_s": played.cpu_s,
        "others_cpu_share": played.others_cpu_share,
        **played.counted,
    }


def ttft(times_s: Sequence[float]) -> dict[str, float | None]:
    """Percentiles and mean of the first-token times of resumed turns."""
    return {
        **{f"resume_ttft_p{level}_s": _percentile(times_s, level) for level in (50, 95, 99)},
        "resume_ttft_mean_s": _mean(times_s),
    }


def at_once_share(turns: Sequence[PlayedTurn]) -> float:
    """Answers of which the client got all tokens at once: their first was as late as their last.

    On few cores the API process may not run while the engine computes.
    """
    after_s = [turn.result.total_s - turn.result.ttft_s for turn in turns]
    return sum(each < AT_ONCE_S for each in after_s) / len(after_s)


def resume_times_s(replay: Replay) -> dict[str, list[float]]:
    """By session, the first-token times of the turns that came back from a pause, in order."""
    times_s: dict[str, list[float]] = {}
    for turn in sorted(replay.turns.values(), key=lambda turn: turn.start_s):
        session_s = times_s.setdefault(turn.session_id, [])
        if turn.turn > 0:
            session_s.append(round(turn.result.ttft_s, 5))
    return times_s


def turn_rows(played: Played) -> Iterator[dict[str, Any]]:
    """Every turn of a replay, in order of arrival: to look for what a percentile hides."""
    known = {
        (session.session_id, number): turn.known_tokens
        for session in played.workload.sessions
        for number, turn in enumerate(session.turns)
    }
    for turn in sorted(played.replay.turns.values(), key=lambda turn: turn.start_s):
        yield {
            "session": turn.session_id,
            "turn": turn.turn,
            "reply_id": turn.result.reply_id,
            "start_s": round(turn.start_s, 4),
            "end_s": round(turn.end_s, 4),
            "ttft_s": round(turn.result.ttft_s, 5),
            "prompt_tokens": turn.result.prompt_tokens,
            "known_tokens": known[turn.session_id, turn.turn],
            "cached_tokens": turn.result.cached_tokens,
        }


def mismatches(replay: Replay, reference: Replay) -> int:
    """Turns whose prompt or answer is not, token by token, that of the reference."""
    return sum(
        not _is_same(turn, reference.turns[key])
        for key, turn in replay.turns.items()
        if key in reference.turns
    )


def busy_s(replay: Replay) -> float:
    """Seconds in which at least one turn was under way: of an infinite pool, the load."""
    total = until = 0.0
    for turn in sorted(replay.turns.values(), key=lambda turn: turn.start_s):
        total += max(0.0, turn.end_s - max(until, turn.start_s))
        until = max(until, turn.end_s)
    return total


def _is_same(one: PlayedTurn, other: PlayedTurn) -> bool:
    same_prompt = one.result.prompt_tokens == other.result.prompt_tokens
    return same_prompt and one.result.same_answer(other.result)


def _resumes(replay: Replay, workload: Workload) -> Iterator[_Resume]:
    for session in workload.sessions:
        for number, planned in enumerate(session.turns[1:], start=1):
            before = replay.turns[session.session_id, number - 1]
            turn = replay.turns[session.session_id, number]
            # As the server counts tokens: ours counts them alike, another model's may not.
            scale = turn.result.prompt_tokens / planned.prompt_tokens
            known = round(planned.known_tokens * scale)
            yield _Resume(turn, known, turn.start_s - before.end_s)


def _paused_token_s(
    resumes: Sequence[_Resume], counted: Mapping[str, float | None]
) -> float | None:
    """Tokens that resumes found cached in the pool, times the pauses in which they lay there.

    What was pushed out meanwhile is not in it. Servers say of each request only how much was found
    in pool and DRAM together; the pool's part is taken as the same for all, that of the whole run.
    """
    local, external = counted.get("local_hit_tokens"), counted.get("external_hit_tokens")
    if local is None:
        return None
    found = local + (external or 0.0)
    share = local / found if found else 0.0
    return share * sum(each.turn.result.cached_tokens * each.pause_s for each in resumes)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _percentile(values: Sequence[float], level: int) -> float | None:
    return float(np.percentile(values, level)) if len(values) else None
