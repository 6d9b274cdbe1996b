"""agentkv's numbers in vLLM's own statistics, and so at vLLM's `/metrics`."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
    OffloadPromMetrics,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from agentkv.metrics import ALL_METRICS, Kind, Metric, Recorder

from .control import take_replies

_LONGEST_S = 1.0


def metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """The definitions vLLM's offloading spec hands to Prometheus."""
    return {metric.name: _definition(metric) for metric in ALL_METRICS}


def to_stats(recorder: Recorder) -> OffloadingConnectorStats:
    """Empties `recorder` into the statistics object that travels to the API process."""
    taken = recorder.take()
    stats = OffloadingConnectorStats()
    for (metric, labels), value in taken.counters.items():
        stats.increase_counter(metric.name, value, labels)
    for (metric, labels), value in taken.gauges.items():
        stats.set_gauge(metric.name, value, labels)
    for (metric, labels), values in taken.samples.items():
        for value in values:
            stats.observe_histogram(metric.name, value, labels)
    return stats


class StatsPace:
    """When the numbers go to the API process: it counts them before it hands out a step's tokens.

    So with the steps in which a turn ends, or nothing runs, and else once a second; a first token
    does not wait for them. Owned by the scheduler thread.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._open: set[str] = set()
        self._has_finished = False

    def note_arrived(self, request_id: str) -> None:
        self._open.add(request_id)

    def note_finished(self, request_id: str) -> None:
        self._open.discard(request_id)
        self._has_finished = True

    def is_due(self, now_s: float) -> bool:
        """Asked at each step, and answered with yes: they go now."""
        if self._since_s is None:
            self._since_s = now_s
        is_news = self._has_finished or not self._open
        if not is_news and now_s - self._since_s < _LONGEST_S:
            return False
        self._since_s, self._has_finished = None, False
        return True


class AgentKVPromMetrics(OffloadPromMetrics):
    """vLLM's own, in the API process; what the engine answers there goes on to who waits for it."""

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        replies = take_replies(transfer_stats_data)
        super().observe(transfer_stats_data, engine_idx)
        if replies:
            from .endpoint import mailbox  # Only where a server runs.

            for reply in replies:
                mailbox.deliver(reply, engine_idx)


def unregister_metrics() -> None:
    """Takes our metrics out of this process's registry, for the next engine to register them."""
    names = {metric.name for metric in ALL_METRICS}
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", None) in names:
            REGISTRY.unregister(collector)


def _definition(metric: Metric) -> OffloadingMetricMetadata:
    common: dict[str, Any] = {
        "documentation": metric.documentation,
        "labelnames": metric.labels,
    }
    if metric.kind is Kind.COUNTER:
        return OffloadingCounterMetadata(**common)
    if metric.kind is Kind.GAUGE:
        return OffloadingGaugeMetadata(**common)
    return OffloadingHistogramMetadata(**common, buckets=metric.buckets)
