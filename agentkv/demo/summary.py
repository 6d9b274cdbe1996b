"""The numbers under the table: first-token times, tokens computed again, ratios, wrong tokens.

Every number comes from this run; a ratio is one of medians taken side by side, with its spread.
Where: after the join, before the report.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkv.demo.ratios import RatioSample
from agentkv.demo.replay import Replay
from agentkv.demo.rows import PauseRow, mismatched_turns
from agentkv.demo.tiers import tier_summary

ACTIONS = ("hold", "swap", "recompute")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One median over another; `p10`..`p90` is the spread of the ratio pair by pair."""

    over: str
    under: str
    ratio: float | None
    p10: float | None
    p90: float | None
    over_p50_s: float | None
    under_p50_s: float | None
    pairs: int
    pairs_discarded: int
    problems: tuple[str, ...]
    mismatches: int


def ratio(samples: Sequence[RatioSample], over: str, under: str) -> Ratio:
    """Median first-token times `over` / `under`, over the pairs of which both are as claimed.

    A pair is the same resume of the same round, with and without the plugin; where the two kinds
    are different resumes it is the last of each in the round.
    """
    by_kind = {
        kind: {(each.round, each.turn): each for each in samples if each.kind == kind}
        for kind in (over, under)
    }
    if not by_kind[over].keys() & by_kind[under].keys():
        by_kind = {kind: _last_of_round(each.values()) for kind, each in by_kind.items()}
    keys = sorted(by_kind[over].keys() & by_kind[under].keys())
    pairs = [(by_kind[over][key], by_kind[under][key]) for key in keys]
    good = [pair for pair in pairs if pair[0].problem is None and pair[1].problem is None]
    problems = {f"{s.kind}: {s.problem}" for pair in pairs for s in pair if s.problem is not None}
    times = np.array([[s.result.ttft_s for s in pair] for pair in good]).reshape(-1, 2)
    medians = np.median(times, axis=0) if good else np.array([np.nan, np.nan])
    each = times[:, 0] / times[:, 1]
    return Ratio(
        over=over,
        under=under,
        ratio=_rounded(medians[0] / medians[1]) if good else None,
        p10=_percentile(each, 10),
        p90=_percentile(each, 90),
        over_p50_s=_rounded(medians[0]) if good else None,
        under_p50_s=_rounded(medians[1]) if good else None,
        pairs=len(good),
        pairs_discarded=len(pairs) - len(good),
        problems=tuple(sorted(problems)),
        mismatches=sum(
            not one.result.same_answer(other.result)
            for one, other in pairs
            if one.turn == other.turn  # else they answer different prompts
        ),
    )


def _last_of_round(samples: Iterable[RatioSample]) -> dict[tuple[int, int], RatioSample]:
    return {(each.round, 0): each for each in sorted(samples, key=lambda each: each.turn)}


def summarize(
    rows: Sequence[PauseRow],
    plugin: Replay,
    stock: Replay,
    ratios: Mapping[str, Ratio],
    prefetch: Mapping[str, float],
) -> dict[str, Any]:
    """The `summary` object of the JSON output; times in seconds, of the turns after a pause."""
    differing = mismatched_turns(plugin, stock)
    actions = Counter(row.action for row in rows)
    tiers = Counter(row.tier for row in rows if row.tier is not None)
    return {
        "token_mismatches": len(differing) + sum(each.mismatches for each in ratios.values()),
        "mismatched_turns": [list(key) for key in differing],
        "turns_compared": len(plugin.turns),
        "resume_ttft_p50_ratio": ratios["resume"].ratio,
        "hold_ttft_p50_ratio": ratios["hold"].ratio,
        "prefetch_ttft_p50_ratio": ratios["prefetch"].ratio,
        "prefetch": dict(prefetch),
        "resume_local_hit_share": _local_share(rows),
        "pauses": len(rows),
        "actions": {action: actions[action] for action in ACTIONS},
        "pauses_without_ledger_entry": actions[None],
        "resumes_by_tier": dict(sorted(tiers.items())),
        "tiers": tier_summary(rows),
        "tokens_recomputed": sum(row.recomputed_tokens for row in rows),
        "tokens_recomputed_stock": sum(row.recomputed_stock_tokens for row in rows),
        "tokens_reused": sum(row.reused_tokens for row in rows),
        "tokens_reused_stock": sum(row.reused_stock_tokens for row in rows),
        **_ttft([row.ttft_s for row in rows], ""),
        **_ttft([row.ttft_stock_s for row in rows], "_stock"),
        "replay_s": _rounded(plugin.duration_s),
        "replay_stock_s": _rounded(stock.duration_s),
    }


def _local_share(rows: Sequence[PauseRow]) -> float | None:
    """Part of the tokens that sessions had computed before and that were in the pool on resume."""
    seen = [row for row in rows if row.gpu_hit_tokens is not None]
    known = sum(row.known_tokens for row in seen)
    found = sum(min(row.gpu_hit_tokens or 0, row.known_tokens) for row in seen)
    return _rounded(found / known) if known else None


def _ttft(times_s: Sequence[float], suffix: str) -> dict[str, float | None]:
    return {f"ttft_p{level}{suffix}_s": _percentile(times_s, level) for level in (50, 95)}


def _percentile(values: Sequence[float] | Any, level: int) -> float | None:
    return _rounded(np.percentile(values, level)) if len(values) else None


def _rounded(value: Any) -> float:
    return round(float(value), 5)
