"""What prefetching did during a replay, read from the server's own /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentkv import metrics

OUTCOMES = ("useful", "late", "lost", "useless", "failed")


@dataclass(frozen=True, slots=True)
class PrefetchCounts:
    """Totals since the server's start; `early_byte_s`: bytes times the seconds they lay waiting."""

    outcomes: Mapping[str, float] = field(default_factory=dict)
    triggers: Mapping[str, float] = field(default_factory=dict)
    early_byte_s: float = 0.0

    def since(self, before: PrefetchCounts) -> dict[str, float]:
        """What was added since `before`, as the JSON output names it."""
        return {
            **{name: _added(self.outcomes, before.outcomes, name) for name in OUTCOMES},
            "early_byte_s": self.early_byte_s - before.early_byte_s,
            **{
                f"started_{name}": _added(self.triggers, before.triggers, name)
                for name in sorted(self.triggers)
            },
        }


def _added(after: Mapping[str, float], before: Mapping[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def read_prefetches(url: str) -> PrefetchCounts:
    """Asks a server with agentkv. Raises httpx.HTTPError when it does not answer."""
    response = httpx.get(f"{url}/metrics", timeout=10.0)
    response.raise_for_status()
    return parse_prefetches(response.text)


def parse_prefetches(text: str) -> PrefetchCounts:
    """The counters in a Prometheus page; those that are not there yet count 0."""
    outcomes: dict[str, float] = {}
    triggers: dict[str, float] = {}
    early_byte_s = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_total"):
                continue
            name = sample.name.removesuffix("_total")
            if name == metrics.PREFETCH_OUTCOMES.name:
                outcomes[sample.labels["outcome"]] = sample.value
            elif name == metrics.PREFETCHES.name:
                triggers[sample.labels["trigger"]] = sample.value
            elif name == metrics.PREFETCH_EARLY.name:
                early_byte_s += sample.value
    return PrefetchCounts(outcomes, triggers, early_byte_s)
