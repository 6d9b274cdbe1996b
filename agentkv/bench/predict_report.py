"""What `agentkv bench predict` shows and writes: the scores, and those of each rival.

Where: last step; the values come from `predict_run`. A score that has no value is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

from agentkv.bench.predict_run import PredictResult
from agentkv.bench.predict_scores import Coverage, Scores

OURS, NO_HISTORY = "agentkv", "no history"
_LABELS = {
    "tool_cdf": "tool CDF (Continuum)",
    "class_cdf": "class CDF",
    "lognormal": "log-normal",
    "ewma": "EWMA",
}


def predict_table(result: PredictResult) -> Table:
    """At most 80 letters wide."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("predictor")
    for name in ("R²", "AUC >10 s", "80 %", "95 %", "log score"):
        table.add_column(name, justify="right")
    rows = {OURS: result.ours, NO_HISTORY: result.no_history, **result.by_rival}
    for name, scores in rows.items():
        whole = scores.coverage[0.0]
        table.add_row(
            _LABELS.get(name, name),
            *(_cell(scores.r2_log_wait), _cell(scores.auc_gt_10s)),
            *(_percent(whole.within_80), _percent(whole.within_95)),
            _cell(scores.log_score),
        )
    return table


def coverage_table(result: PredictResult) -> Table:
    """How often our intervals hold, once a wait has lasted some time."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("age")
    for name in ("waits", "80 %", "± chance", "95 %"):
        table.add_column(name, justify="right")
    for age_s, found in result.ours.coverage.items():
        table.add_row(
            f"{age_s:g} s",
            f"{found.num}",
            _percent(found.within_80),
            _percent(found.margin_80()),
            _percent(found.within_95),
        )
    return table


def notes(result: PredictResult) -> Iterator[str]:
    """What was compared, in words."""
    yield f"{result.split}; {result.num_fit} pauses to begin with, {result.ours.num} judged."
    yield (
        "Each pause is forecast before it is learned. no history: sessions not told apart, and"
        " learned only when over. log score: mean log density of ln(wait)."
    )


def json_value(result: PredictResult) -> dict[str, Any]:
    """The figures by name; null where there is none."""
    ours = result.ours
    whole = ours.coverage[0.0]
    return {
        "r2_log_wait": _number(ours.r2_log_wait),
        "r2_log_wait_no_history": _number(result.no_history.r2_log_wait),
        "auc_gt_10s": _number(ours.auc_gt_10s),
        "auc_gt_10s_no_history": _number(result.no_history.auc_gt_10s),
        "coverage_80": _number(whole.within_80),
        "coverage_95": _number(whole.within_95),
        "coverage_by_age_s": {f"{age:g}": _coverage(c) for age, c in ours.coverage.items()},
        "log_score": {
            "agentkv": _number(ours.log_score),
            "agentkv_no_history": _number(result.no_history.log_score),
            **{name: _number(scores.log_score) for name, scores in result.by_rival.items()},
        },
        "rivals": {name: _scores(scores) for name, scores in result.by_rival.items()},
        "num_pauses": ours.num,
        "num_pauses_over_10s": ours.num_long,
        "num_pauses_fit": result.num_fit,
        "split": result.split,
    }


def _scores(scores: Scores) -> dict[str, Any]:
    return {
        "r2_log_wait": _number(scores.r2_log_wait),
        "auc_gt_10s": _number(scores.auc_gt_10s),
        "log_score": _number(scores.log_score),
        "coverage_by_age_s": {f"{age:g}": _coverage(c) for age, c in scores.coverage.items()},
    }


def _coverage(found: Coverage) -> dict[str, Any]:
    return {
        "num_pauses": found.num,
        "coverage_80": _number(found.within_80),
        "coverage_95": _number(found.within_95),
    }


def _number(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def _cell(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if math.isfinite(share) else "-"
