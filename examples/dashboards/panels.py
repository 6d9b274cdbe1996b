"""What the dashboard shows: its panels, row by row, with their queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["stat", "timeseries"]


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` map a legend to PromQL; `@` in it is the choice of model and engine.

    A legend such as {{action}} gives a line for each value of that label.
    """

    title: str
    unit: str
    queries: dict[str, str]
    meaning: str
    kind: Kind = "timeseries"
    width: int = 8
    is_stacked: bool = False
    top: float | None = None


def rate(name: str, by: str) -> str:
    """A counter's growth a second, by the values of a label."""
    return f"sum by ({by}) (rate({name}_total{{@}}[$__rate_interval]))"


def total_rate(name: str, where: str = "") -> str:
    """A counter's growth a second, of all series that fit."""
    return f"sum(rate({name}_total{{@{where}}}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """Nothing, not zero, where nothing happened."""
    return f"{part} / ({whole} > 0)"


def quantiles(name: str, by: str = "") -> dict[str, str]:
    """Median and 95th percentile of a histogram, by a label if one is given."""
    labels = f"le, {by}" if by else "le"
    prefix = f"{{{{{by}}}}} " if by else ""
    return {
        f"{prefix}p{q}": f"histogram_quantile(0.{q}, sum by ({labels}) "
        f"(rate({name}_bucket{{@}}[$__rate_interval])))"
        for q in (50, 95)
    }


_RESUMED = "agentkv:resume_tokens"
_KNOWN = total_rate(_RESUMED, ', source!="new"')
_FOUND = total_rate(_RESUMED, ', source!~"new|recomputed"')
_INSIDE = total_rate("agentkv:forecasts", ', outcome="inside"')

_FIRST_TOKEN = quantiles("vllm:time_to_first_token_seconds")

ROWS: dict[str, tuple[Panel, ...]] = {
    "At a glance": (
        Panel(
            "Known tokens found",
            "percentunit",
            {"found": share(_FOUND, _KNOWN)},
            "Of the tokens that resumed turns had computed before: found in some tier.",
            "stat",
            6,
            top=1,
        ),
        Panel(
            "Prompt tokens found in the pool",
            "percentunit",
            {
                "found": share(
                    total_rate("vllm:prefix_cache_hits"), total_rate("vllm:prefix_cache_queries")
                )
            },
            "vLLM's own prefix hit rate, of all requests.",
            "stat",
            6,
            top=1,
        ),
        Panel(
            "Pressure",
            "percentunit",
            {"pressure": "max(agentkv:pressure{@})"},
            "Share of the wanted blocks that only live sessions could provide. 0: do nothing.",
            "stat",
            6,
            top=1,
        ),
        Panel(
            "Faults and load failures since the start",
            "short",
            {
                "faults": "sum(agentkv:faults_total{@}) or vector(0)",
                "refused blocks": "sum(agentkv:load_failures_total{@}) or vector(0)",
            },
            "Each was turned into a miss; the server's log names the first of each.",
            "stat",
            6,
        ),
    ),
    "Pauses": (
        Panel(
            "Sessions",
            "short",
            {"{{state}}": "sum by (state) (agentkv:sessions{@})"},
            "Known sessions by state.",
            is_stacked=True,
        ),
        Panel(
            "Decisions",
            "ops",
            {"{{action}}": rate("agentkv:decisions", "action")},
            "What was decided for pauses, re-decisions too.",
            is_stacked=True,
        ),
        Panel(
            "KV decided about",
            "Bps",
            {"{{action}}": rate("agentkv:decided_bytes", "action")},
            "Bytes that only the paused session had in the pool.",
            is_stacked=True,
        ),
        Panel("Tool waits", "s", quantiles("agentkv:wait_seconds"), "How long the pauses were."),
        Panel(
            "Waits inside their 80 % interval",
            "percentunit",
            {"inside": share(_INSIDE, total_rate("agentkv:forecasts"))},
            "0.8 is calibrated; below, the predictor is too sure of itself.",
            top=1,
        ),
        Panel(
            "Regret",
            "s",
            {"{{action}}": rate("agentkv:regret_seconds", "action")},
            "Seconds of delay a second over the best action in hindsight.",
            is_stacked=True,
        ),
    ),
    "Resumes": (
        Panel(
            "Resumes by where the KV was",
            "ops",
            {"{{tier}}": rate("agentkv:resumes", "tier")},
            "none: nothing was found; mixed: in the pool and in DRAM.",
            is_stacked=True,
        ),
        Panel(
            "Prompt tokens of resumes",
            "short",
            {"{{source}}": rate(_RESUMED, "source")},
            "Tokens a second by source; recomputed: known before and computed again.",
            is_stacked=True,
        ),
        Panel(
            "Prompt tokens found, by session",
            "percentunit",
            {
                "{{session}}": share(
                    'sum by (session) (rate(agentkv:prefix_tokens_total{@, found="yes"}'
                    "[$__rate_interval]))",
                    rate("agentkv:prefix_tokens", "session"),
                )
            },
            "first: the first turn of any session; inferred: no name was sent.",
            top=1,
        ),
        Panel(
            "From arrival to blocks",
            "s",
            quantiles("agentkv:resume_wait_seconds", "tier"),
            "Of resumed turns, by where their KV was; loads from DRAM come after that.",
        ),
        Panel(
            "Time to first token",
            "s",
            {
                **{f"all {q}": query for q, query in _FIRST_TOKEN.items()},
                **quantiles("agentkv:resume_ttft_seconds", "source"),
            },
            "vLLM's own, of all requests; of resumed turns by where most of their KV came from.",
        ),
        Panel(
            "Held back",
            "short",
            {"waiting": "sum(agentkv:admission_waiting{@})"},
            "Turns that wait while much is computed again.",
        ),
    ),
    "Tiers": (
        Panel(
            "GPU pool",
            "short",
            {"{{state}}": "sum by (state) (agentkv:pool_blocks{@})"},
            "Blocks used by running turns; at most so many kept for pauses; free.",
            is_stacked=True,
        ),
        Panel(
            "In DRAM",
            "bytes",
            {"dram": 'sum(agentkv:tier_bytes{@, tier="dram"})'},
            "Bytes of KV that DRAM holds. vLLM's own gauge counts only what is being copied.",
        ),
        Panel(
            "Below DRAM",
            "bytes",
            {"{{tier}}": 'sum by (tier) (agentkv:tier_bytes{@, tier!="dram"})'},
            "Bytes that SSD, Redis or LMCache hold.",
            is_stacked=True,
        ),
        Panel(
            "Written below DRAM",
            "ops",
            {"{{tier}}, {{reason}}": rate("agentkv:demoted_blocks", "tier, reason")},
            "Blocks; wait: the pause will be long; pressure: DRAM will need their room.",
        ),
        Panel(
            "Brought up to DRAM",
            "ops",
            {"{{tier}}, {{purpose}}": rate("agentkv:promoted_blocks", "tier, purpose")},
            "Blocks, for a turn that has come, or before it comes.",
        ),
        Panel(
            "Tiers that work",
            "short",
            {"{{tier}}": "min by (tier) (agentkv:tier_available{@})"},
            "1; or 0 while a tier is left alone after failures.",
            top=1,
        ),
        Panel(
            "Tier failures since the start",
            "short",
            # Not their rate: a tier that fails is left alone, and the first failure has none.
            {"{{tier}}, {{reason}}": "sum by (tier, reason) (agentkv:tier_failures_total{@})"},
            "Each is a miss; nothing here, none.",
        ),
        Panel(
            "Copies between GPU and DRAM",
            "Bps",
            {
                "to DRAM": total_rate("vllm:kv_offload_store_bytes"),
                "to the GPU": total_rate("vllm:kv_offload_load_bytes"),
            },
            "vLLM's own counters.",
        ),
        Panel(
            "Given up, protected, copied out",
            "ops",
            {
                "given up: {{reason}}": rate("agentkv:given_up_blocks", "reason"),
                "protected": total_rate("agentkv:protected_blocks"),
                "copied out": total_rate("agentkv:copied_out_blocks"),
            },
            "Blocks of the pool's free queue, moved to its front or its end, or saved to DRAM.",
        ),
    ),
    "Prefetch and signals": (
        Panel(
            "Prefetches",
            "ops",
            {"{{trigger}}": rate("agentkv:prefetches", "trigger")},
            "Loads without a request, by what started them.",
            width=6,
            is_stacked=True,
        ),
        Panel(
            "What became of them",
            "ops",
            {"{{outcome}}": rate("agentkv:prefetch_outcomes", "outcome")},
            "late: the turn came first; lost: pushed out before it came.",
            width=6,
            is_stacked=True,
        ),
        Panel(
            "Signals and tags",
            "ops",
            {
                "{{status}}": rate("agentkv:signals", "status"),
                "tagged requests": total_rate("agentkv:tags"),
                "tag keys ignored": total_rate("agentkv:tag_problems"),
            },
            "What clients told.",
            width=6,
        ),
        Panel(
            "Loads given up",
            "ops",
            {
                "refused: {{reason}}": rate("agentkv:load_failures", "reason"),
                "took too long": total_rate("agentkv:load_timeouts"),
                "too short to pay": total_rate("agentkv:short_hits_skipped"),
            },
            "Computed instead.",
            width=6,
        ),
    ),
}
