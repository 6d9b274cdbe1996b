"""Names of everything agentkv counts, and where the counts gather between two scrapes.

The names are a contract (`tests/test_metrics.py` pins them). `connectors/metrics.py` hands the
numbers to vLLM, which shows them at its own `/metrics`, with its engine label and, for counters,
the suffix `_total`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    documentation: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] | None = None


_DELAY_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
# vLLM's own of its time to first token, so that the two can be compared.
_FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_WAIT_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)

DECISIONS = Metric(
    "agentkv:decisions", Kind.COUNTER, "Pause decisions by action, re-decisions too.", ("action",)
)
DECIDED_BYTES = Metric(
    "agentkv:decided_bytes",
    Kind.COUNTER,
    "Bytes of KV that only the paused session had in the pool, by what was decided for them.",
    ("action",),
)
RESUMES = Metric(
    "agentkv:resumes",
    Kind.COUNTER,
    "Resumed turns by the slowest place that their KV came from: gpu, mixed (gpu and dram), dram, "
    "ssd, redis, lmcache or none.",
    ("tier",),
)
RESUME_TOKENS = Metric(
    "agentkv:resume_tokens",
    Kind.COUNTER,
    "Prompt tokens of resumed turns by source: gpu, dram, ssd, redis, lmcache, recomputed "
    "(known before, computed again) or new.",
    ("source",),
)
WAIT_SECONDS = Metric(
    "agentkv:wait_seconds", Kind.HISTOGRAM, "Observed tool waits.", (), _WAIT_BUCKETS_S
)
RESUME_WAIT = Metric(
    "agentkv:resume_wait_seconds",
    Kind.HISTOGRAM,
    "From a resumed turn's arrival to when it got its blocks, by where their KV was: queueing and "
    "KV on its way to DRAM; what DRAM has is loaded after that.",
    ("tier",),
    _DELAY_BUCKETS_S,
)
RESUME_TTFT = Metric(
    "agentkv:resume_ttft_seconds",
    Kind.HISTOGRAM,
    "Time to first token of resumed turns, from their arrival in the API process to the step that "
    "made it, by where most of the KV they had before came from: gpu, dram, ssd, redis, lmcache, "
    "recomputed; new: they had none.",
    ("source",),
    _FIRST_TOKEN_BUCKETS_S,
)
PREFIX_TOKENS = Metric(
    "agentkv:prefix_tokens",
    Kind.COUNTER,
    "Prompt tokens by session (first turn of any; named or inferred) and whether KV was found.",
    ("session", "found"),
)
FORECASTS = Metric(
    "agentkv:forecasts",
    Kind.COUNTER,
    "Waits against their forecast: earlier than its 80 % interval, inside of it (8 of 10, if it is "
    "calibrated) or later.",
    ("outcome",),
)
REGRET_SECONDS = Metric(
    "agentkv:regret_seconds",
    Kind.COUNTER,
    "What pauses cost over the best action in hindsight, by the action taken last.",
    ("action",),
)
GIVEN_UP_BLOCKS = Metric(
    "agentkv:given_up_blocks",
    Kind.COUNTER,
    "KV blocks moved to the front of the free queue: ended, superseded or given up under pressure.",
    ("reason",),
)
PROTECTED_BLOCKS = Metric(
    "agentkv:protected_blocks",
    Kind.COUNTER,
    "Free KV blocks moved behind all others because their turn has arrived and waits.",
)
SHORT_HITS_SKIPPED = Metric(
    "agentkv:short_hits_skipped",
    Kind.COUNTER,
    "DRAM hits recomputed instead of loaded since loading would take longer.",
)
LOAD_TIMEOUTS = Metric(
    "agentkv:load_timeouts",
    Kind.COUNTER,
    "Turns that computed because KV they wanted was being copied for too long.",
)
LOAD_FAILURES = Metric(
    "agentkv:load_failures",
    Kind.COUNTER,
    "KV blocks whose load was refused and that were recomputed.",
    ("reason",),
)
TAGS = Metric("agentkv:tags", Kind.COUNTER, "Requests that carried an agentkv tag.")
TAG_PROBLEMS = Metric("agentkv:tag_problems", Kind.COUNTER, "Tag keys that were ignored.")
SIGNALS = Metric(
    "agentkv:signals", Kind.COUNTER, "Signals from outside by what became of them.", ("status",)
)
PREFETCHES = Metric(
    "agentkv:prefetches",
    Kind.COUNTER,
    "Loads of a paused session's KV into the pool without a request, by what started them.",
    ("trigger",),
)
PREFETCH_OUTCOMES = Metric(
    "agentkv:prefetch_outcomes",
    Kind.COUNTER,
    "Prefetches by outcome: useful, late (the turn came first), lost (pushed out before it came), "
    "useless (no turn wanted it) or failed.",
    ("outcome",),
)
PREFETCHED_TOKENS = Metric(
    "agentkv:prefetched_tokens", Kind.COUNTER, "Tokens whose KV was prefetched into the pool."
)
PREFETCH_EARLY = Metric(
    "agentkv:prefetch_early_byte_seconds",
    Kind.COUNTER,
    "Bytes of useful prefetches times the seconds they lay in the pool before the turn came.",
)
COPIED_OUT_BLOCKS = Metric(
    "agentkv:copied_out_blocks",
    Kind.COUNTER,
    "Blocks copied from the GPU pool to DRAM without a request, before the pool gave them up.",
)
DEMOTED_BLOCKS = Metric(
    "agentkv:demoted_blocks",
    Kind.COUNTER,
    "DRAM blocks written to a tier below, by tier and why: pressure (DRAM will need their room) or "
    "wait (the pause will be long).",
    ("tier", "reason"),
)
PROMOTED_BLOCKS = Metric(
    "agentkv:promoted_blocks",
    Kind.COUNTER,
    "Blocks brought up to DRAM from a tier below, by tier and for what: turn or prefetch.",
    ("tier", "purpose"),
)
TIER_FAILURES = Metric(
    "agentkv:tier_failures",
    Kind.COUNTER,
    "What went wrong in a tier below DRAM, by tier and reason; each is a miss.",
    ("tier", "reason"),
)
TIER_BLOCKS = Metric(
    "agentkv:tier_blocks",
    Kind.GAUGE,
    "Blocks of this model that the tier holds: DRAM and those below it.",
    ("tier",),
)
TIER_BYTES = Metric("agentkv:tier_bytes", Kind.GAUGE, "Bytes that the tier uses.", ("tier",))
TIER_AVAILABLE = Metric(
    "agentkv:tier_available",
    Kind.GAUGE,
    "1 while the tier works, 0 while it is left alone after failures.",
    ("tier",),
)
FAULTS = Metric(
    "agentkv:faults",
    Kind.COUNTER,
    "Faults inside agentkv, turned into a miss.",
    ("where",),
)
SESSIONS = Metric("agentkv:sessions", Kind.GAUGE, "Known sessions by state.", ("state",))
PRESSURE = Metric(
    "agentkv:pressure",
    Kind.GAUGE,
    "Share of the blocks wanted now that only live sessions' blocks could provide (0 to 1).",
)
ADMISSION_WAITING = Metric(
    "agentkv:admission_waiting",
    Kind.GAUGE,
    "Turns held back while much is computed again.",
)
ADMISSION_DELAYED = Metric(
    "agentkv:admission_delayed", Kind.COUNTER, "Turns that were held back at all."
)
ADMISSION_WAIT = Metric(
    "agentkv:admission_wait_seconds",
    Kind.HISTOGRAM,
    "How long turns were held back.",
    (),
    _WAIT_BUCKETS_S,
)
RECOMPUTE_LOAD = Metric(
    "agentkv:recompute_load",
    Kind.GAUGE,
    "Share of the time that goes into computing again what was known (0 to 1), half a minute's.",
)
BLOCKS = Metric(
    "agentkv:pool_blocks",
    Kind.GAUGE,
    "KV blocks of the GPU pool: used by running turns; at most so many kept for paused sessions, "
    "to be had at any time; free. vLLM's usage counts the first alone.",
    ("state",),
)

ALL_METRICS: tuple[Metric, ...] = (
    DECISIONS,
    DECIDED_BYTES,
    RESUMES,
    RESUME_TOKENS,
    RESUME_WAIT,
    RESUME_TTFT,
    PREFIX_TOKENS,
    WAIT_SECONDS,
    FORECASTS,
    REGRET_SECONDS,
    GIVEN_UP_BLOCKS,
    PROTECTED_BLOCKS,
    SHORT_HITS_SKIPPED,
    LOAD_TIMEOUTS,
    LOAD_FAILURES,
    TAGS,
    TAG_PROBLEMS,
    SIGNALS,
    PREFETCHES,
    PREFETCH_OUTCOMES,
    PREFETCHED_TOKENS,
    PREFETCH_EARLY,
    COPIED_OUT_BLOCKS,
    DEMOTED_BLOCKS,
    PROMOTED_BLOCKS,
    TIER_FAILURES,
    TIER_BLOCKS,
    TIER_BYTES,
    TIER_AVAILABLE,
    FAULTS,
    SESSIONS,
    PRESSURE,
    ADMISSION_WAITING,
    ADMISSION_DELAYED,
    ADMISSION_WAIT,
    RECOMPUTE_LOAD,
    BLOCKS,
)

Labels = tuple[str, ...]


class Recorder:
    """Gathers values until they are taken. Owned by the scheduler thread."""

    def __init__(self) -> None:
        self.counters: dict[tuple[Metric, Labels], float] = {}
        self.gauges: dict[tuple[Metric, Labels], float] = {}
        self.samples: dict[tuple[Metric, Labels], list[float]] = {}

    def count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        if by:
            key = (metric, labels)
            self.counters[key] = self.counters.get(key, 0) + by

    def gauge(self, metric: Metric, *labels: str, value: float) -> None:
        self.gauges[metric, labels] = value

    def sample(self, metric: Metric, *labels: str, value: float) -> None:
        self.samples.setdefault((metric, labels), []).append(value)

    def is_empty(self) -> bool:
        return not (self.counters or self.gauges or self.samples)

    def take(self) -> Recorder:
        """Everything since the last call; this recorder starts afresh."""
        taken = Recorder()
        taken.counters, self.counters = self.counters, {}
        taken.gauges, self.gauges = self.gauges, {}
        taken.samples, self.samples = self.samples, {}
        return taken
