"""What the comparison of simulator and engine says: table, summary, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from agentkv import __version__
from agentkv.bench.simulated import FEW, METRICS, NEAR, Compared, Comparison

HEADERS: Final = (
    "live / pool, DRAM / pool (x)",
    "seed",
    "system",
    "number",
    "engine",
    "simulated (90 % of draws)",
    "difference, %",
    "others on the machine, %",
)
LABELS: Final = {
    "hit_tokens": "hit tokens",
    "recomputed_tokens": "computed again",
    "resume_ttft_mean_s": "mean resume TTFT, ms",
}


def table_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The cells under `HEADERS`."""
    for each in comparison.values:
        yield (
            place(each),
            str(each.seed),
            f"{each.system} (fitted)" if each.is_fitted else each.system,
            LABELS[each.metric],
            _number(each, each.engine),
            _spread(each),
            _difference(each),
            "-" if each.others_cpu_share is None else f"{100 * each.others_cpu_share:.0f}",
        )


def summary_lines(comparison: Comparison) -> Iterator[str]:
    """How many predictions are near, and the worst of each kind."""
    for metric in METRICS:
        chosen = comparison.of(metric)
        if not chosen:
            continue
        near = sum(each.is_near for each in chosen)
        among = sum(each.is_among_draws for each in chosen)
        worst = max(chosen, key=lambda each: each.error)
        few = f" (or {FEW:.0%} of the reusable)" if metric == "recomputed_tokens" else ""
        yield (
            f"{LABELS[metric]}: {near} of {len(chosen)} predictions within {NEAR:.0%}{few}, "
            f"{among} engine values among the draws; worst {_difference(worst)} % "
            f"({worst.system} at {place(worst)}, seed {worst.seed})"
        )


def fitted_line(comparison: Comparison) -> str:
    """The profile in one sentence."""
    fitted, profile = comparison.fitted, comparison.fitted.profile
    return (
        f"Profile fitted to {fitted.num_alone} of {fitted.num_turns} turns without DRAM (pace "
        f"{fitted.pace:.2f}): "
        f"{profile.prefill_tokens_per_s:,.0f} tokens/s, half of it at position "
        f"{profile.prefill_x0_tokens:,.0f}, {1e3 * profile.decode_step_s:.1f} ms a step, "
        f"{1e3 * profile.request_s:.1f} ms a request, {1e3 * profile.load_latency_s:.1f} ms to "
        f"begin a load; {fitted.at_once_share:.0%} of the answers came as a whole."
    )


def json_value(comparison: Comparison, replay: str) -> dict[str, Any]:
    """Everything, for programs."""
    fitted = comparison.fitted
    return {
        "rows": [
            {
                **asdict(each),
                "difference": each.difference,
                "is_near": each.is_near,
                "is_among_draws": each.is_among_draws,
            }
            for each in comparison.values
        ],
        "near": {
            metric: {
                "near": sum(each.is_near for each in comparison.of(metric)),
                "among_draws": sum(each.is_among_draws for each in comparison.of(metric)),
                "predictions": len(comparison.of(metric)),
            }
            for metric in METRICS
        },
        "fitted": {**asdict(fitted), "profile": fitted.profile.model_dump()},
        "replay": replay,
        "version": __version__,
    }


def place(value: Compared) -> str:
    """The regime, as `4, 1 (1.64)`."""
    return f"{value.oversubscription:g}, {value.dram:g} ({value.x:.2f})"


def _number(each: Compared, value: float) -> str:
    return f"{1e3 * value:.1f}" if each.metric.endswith("_s") else f"{value:,.0f}"


def _spread(each: Compared) -> str:
    low, high = (_number(each, value) for value in (each.low, each.high))
    middle = _number(each, each.simulated)
    return middle if low == high else f"{middle} ({low}-{high})"


def _difference(each: Compared) -> str:
    if each.difference is None:
        return "0" if each.simulated == each.engine else "-"
    return f"{100 * each.difference:+.1f}"
