"""Dashboards and autoscalers depend on these names: a change must be deliberate."""

from __future__ import annotations

from agentkv import metrics
from agentkv.metrics import ALL_METRICS, Recorder


def test_the_exported_names_and_labels_are_pinned() -> None:
    assert {metric.name: metric.labels for metric in ALL_METRICS} == {
        "agentkv:decisions": ("action",),
        "agentkv:decided_bytes": ("action",),
        "agentkv:resume_wait_seconds": ("tier",),
        "agentkv:resume_ttft_seconds": ("source",),
        "agentkv:prefix_tokens": ("session", "found"),
        "agentkv:forecasts": ("outcome",),
        "agentkv:resumes": ("tier",),
        "agentkv:resume_tokens": ("source",),
        "agentkv:wait_seconds": (),
        "agentkv:regret_seconds": ("action",),
        "agentkv:given_up_blocks": ("reason",),
        "agentkv:protected_blocks": (),
        "agentkv:short_hits_skipped": (),
        "agentkv:load_failures": ("reason",),
        "agentkv:tags": (),
        "agentkv:tag_problems": (),
        "agentkv:load_timeouts": (),
        "agentkv:signals": ("status",),
        "agentkv:prefetches": ("trigger",),
        "agentkv:prefetch_outcomes": ("outcome",),
        "agentkv:prefetched_tokens": (),
        "agentkv:prefetch_early_byte_seconds": (),
        "agentkv:copied_out_blocks": (),
        "agentkv:demoted_blocks": ("tier", "reason"),
        "agentkv:promoted_blocks": ("tier", "purpose"),
        "agentkv:tier_failures": ("tier", "reason"),
        "agentkv:tier_blocks": ("tier",),
        "agentkv:tier_bytes": ("tier",),
        "agentkv:tier_available": ("tier",),
        "agentkv:faults": ("where",),
        "agentkv:sessions": ("state",),
        "agentkv:pressure": (),
        "agentkv:admission_waiting": (),
        "agentkv:admission_delayed": (),
        "agentkv:admission_wait_seconds": (),
        "agentkv:recompute_load": (),
        "agentkv:pool_blocks": ("state",),
    }


def test_every_metric_of_the_module_is_exported() -> None:
    defined = {value for value in vars(metrics).values() if isinstance(value, metrics.Metric)}
    assert defined == set(ALL_METRICS)


def test_taking_empties_the_recorder() -> None:
    recorder = Recorder()
    recorder.count(metrics.DECISIONS, "hold")
    recorder.count(metrics.DECISIONS, "hold", by=2)
    recorder.count(metrics.TAGS, by=0)
    recorder.gauge(metrics.PRESSURE, value=0.5)
    recorder.sample(metrics.WAIT_SECONDS, value=1.0)
    taken = recorder.take()
    assert taken.counters == {(metrics.DECISIONS, ("hold",)): 3}
    assert taken.gauges == {(metrics.PRESSURE, ()): 0.5}
    assert taken.samples == {(metrics.WAIT_SECONDS, ()): [1.0]}
    assert recorder.is_empty() and not taken.is_empty()
