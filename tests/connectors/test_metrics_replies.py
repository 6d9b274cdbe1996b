"""The engine's answers leave the statistics in the API process, on their way to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit import RigConfig
from kit.engine_config import vllm_config
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from agentkv import metrics
from agentkv.connectors.connector import AgentKVConnector
from agentkv.connectors.endpoint import mailbox
from agentkv.connectors.metrics import AgentKVPromMetrics, to_stats, unregister_metrics
from agentkv.metrics import Recorder
from agentkv.signals import REPLY_KEY, ControlReply


class Box(mailbox.Mailbox):
    """A mailbox that writes down what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[str, int]] = []

    def take(self, reply: ControlReply, engine_index: int) -> None:
        self.taken.append((reply.id, engine_index))
        if reply.id == "bad":
            raise RuntimeError("scripted")


@pytest.fixture
def box() -> Iterator[Box]:
    made = Box()
    mailbox.activate(made)
    yield made
    mailbox.activate(None)


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentKVPromMetrics]:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    before = set(REGISTRY._collector_to_names)
    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    labels: dict[int, list[object]] = {0: ["m", "0"], 1: ["m", "1"]}
    built = AgentKVConnector.build_prom_metrics(
        vllm_config(RigConfig()), types, ["model_name", "engine"], labels
    )
    assert isinstance(built, AgentKVPromMetrics)
    yield built
    unregister_metrics()
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def statistics(*ids: str) -> dict[str, Any]:
    recorder = Recorder()
    recorder.count(metrics.SIGNALS, "accepted", by=3)
    stats = to_stats(recorder)
    for each in ids:
        stats.increase_counter(REPLY_KEY, 1, (ControlReply(id=each).model_dump_json(),))
    return stats.data


def shown(engine: str) -> float | None:
    labels = {"model_name": "m", "engine": engine, "status": "accepted"}
    return REGISTRY.get_sample_value("agentkv:signals_total", labels)


def test_answers_go_to_the_mailbox_with_their_engine_and_the_rest_to_prometheus(
    prometheus: AgentKVPromMetrics, box: Box
) -> None:
    data = statistics("one", "two")
    prometheus.observe(data, engine_idx=1)
    assert box.taken == [("one", 1), ("two", 1)]
    assert shown("1") == 3 and not shown("0")
    assert REPLY_KEY not in data["data"] and REPLY_KEY not in data["types"]


def test_what_goes_wrong_with_an_answer_stops_neither_the_others_nor_the_counts(
    prometheus: AgentKVPromMetrics, box: Box
) -> None:
    prometheus.observe(statistics("bad", "good"))
    assert box.taken == [("bad", 0), ("good", 0)] and shown("0") == 3


@pytest.mark.parametrize("ids", [(), ("one",)])
def test_without_a_mailbox_answers_are_dropped(
    prometheus: AgentKVPromMetrics, ids: tuple[str, ...]
) -> None:
    prometheus.observe(statistics(*ids))
    assert shown("0") == 3
