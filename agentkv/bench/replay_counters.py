"""What a server counted by itself: read from its /metrics before and after a replay.

Why from there: every vLLM has the same page, so all systems are read alike; what a server does not
count (agentkv's own counters on a stock one) is None and not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentkv import metrics
from agentkv.demo.prefetches import OUTCOMES

Key = tuple[str, frozenset[tuple[str, str]]]

SOURCES = {
    "local_hit_tokens": "local_cache_hit",
    "external_hit_tokens": "external_kv_transfer",
    "computed_tokens": "local_compute",
}
RESUME_SOURCES = ("gpu", "dram", "ssd", "redis")


@dataclass(frozen=True, slots=True)
class Counters:
    """Samples of a Prometheus page, summed over engines."""

    values: Mapping[Key, float] = field(default_factory=dict)

    def get(self, name: str, **labels: str) -> float | None:
        """The sum over all samples of this name with these labels; None if there is none."""
        wanted = frozenset(labels.items())
        found = [v for (n, has), v in self.values.items() if n == name and wanted <= has]
        return sum(found) if found else None

    def since(self, before: Counters) -> Counters:
        """What was added since `before`."""
        return Counters({key: v - before.values.get(key, 0.0) for key, v in self.values.items()})


def parse_counters(text: str) -> Counters:
    """Counters, and the counts of histograms, of a Prometheus page."""
    values: dict[Key, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith(("_total", "_count")):
                labels = {k: v for k, v in sample.labels.items() if k not in ("engine", "le")}
                key = (sample.name, frozenset(labels.items()))
                values[key] = values.get(key, 0.0) + sample.value
    return Counters(values)


def read_counters(url: str) -> Counters:
    """Nothing if the server has no such page."""
    try:
        response = httpx.get(f"{url}/metrics", timeout=10.0)
        response.raise_for_status()
        return parse_counters(response.text)
    except (httpx.HTTPError, ValueError):
        return Counters()


def counted(added: Counters, *, is_ours: bool) -> dict[str, float | None]:
    """The counters' part of a row. `is_ours`: with agentkv, where a counter unseen means 0."""
    none_yet = 0.0 if is_ours else None

    def ours(metric: metrics.Metric, **labels: str) -> float | None:
        found = added.get(f"{metric.name}_total", **labels)
        return none_yet if found is None else found

    return {
        **{
            name: added.get("vllm:prompt_tokens_by_source_total", source=source)
            for name, source in SOURCES.items()
        },
        **{f"resume_{s}_tokens": ours(metrics.RESUME_TOKENS, source=s) for s in RESUME_SOURCES},
        **{f"prefetch_{o}": ours(metrics.PREFETCH_OUTCOMES, outcome=o) for o in OUTCOMES},
        "short_hits_skipped": ours(metrics.SHORT_HITS_SKIPPED),
        "load_timeouts": ours(metrics.LOAD_TIMEOUTS),
        "load_failures": ours(metrics.LOAD_FAILURES),
        "faults": ours(metrics.FAULTS),
        "preemptions": added.get("vllm:num_preemptions_total"),
        "steps": added.get("vllm:iteration_tokens_total_count"),
    }
