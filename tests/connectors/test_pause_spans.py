"""A request's own trace tells of the pause before it and after it, and only where tracing is on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit import Agent, Rig
from kit.tiers import HUMAN, blocks_in, crowd, ssd, step_until
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentkv.connectors import pause_spans
from agentkv.connectors.pause_spans import PAUSE_SPAN, RESUME_SPAN, PauseSpans, open_spans
from agentkv.ledger import Ledger

RigFactory = Callable[..., Rig]


def headers(trace: int, parent: int = 7, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace:032x}-{parent:016x}-{flags}"}


def traced(rig: Rig) -> InMemorySpanExporter:
    """The rig's pauses as spans, kept in memory."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    side = rig.side
    tracer = provider.get_tracer("test")
    side.below.spans = PauseSpans(tracer, rig.connector.connector_scheduler, side.faults)
    side.controller._deps.ledger.on_record = side.below.spans.note
    return exporter


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def last(rig: Rig, kind: str) -> dict[str, Any]:
    records: list[dict[str, Any]] = rig.controller._deps.ledger.records()
    return [record for record in records if record["kind"] == kind][-1]


def test_a_pause_is_in_both_traces_around_it(make_rig: RigFactory) -> None:
    rig = make_rig()
    exporter = traced(rig)
    agent = Agent(rig, "run-1", 1, 6)
    agent.turn(trace_headers=headers(1), tag={"tool": "bash", "expected_wait_s": 30.0})
    (pause,) = named(exporter, PAUSE_SPAN)
    assert pause.context.trace_id == 1 and pause.parent.span_id == 7
    rig.clock.advance(12.0)
    agent.turn(trace_headers=headers(2, 9))
    (resume,) = named(exporter, RESUME_SPAN)
    assert resume.context.trace_id == 2 and resume.parent.span_id == 9
    assert [link.context.span_id for link in resume.links] == [pause.context.span_id]
    decided, found = last(rig, "pause"), last(rig, "resume")
    assert pause.attributes["agentkv.tool"] == "bash"
    assert pause.attributes["agentkv.action"] == "hold" and pause.attributes["agentkv.reason"]
    told = resume.attributes
    assert told["agentkv.wait.actual_s"] == found["wait_s"] >= 12.0
    assert told["agentkv.wait.predicted_p50_s"] == pause.attributes["agentkv.wait.predicted_p50_s"]
    assert told["agentkv.tokens.gpu"] == 6 * 16 and told["agentkv.source"] == "gpu"
    assert told["agentkv.session_id"] == decided["session_id"] == "run-1"
    assert resume.end_time == int(found["t"] * 1e9) >= resume.start_time >= pause.end_time


def test_what_became_of_it_meanwhile_are_events(make_rig: RigFactory, tmp_path: Path) -> None:
    rig = make_rig(**ssd(tmp_path))
    exporter = traced(rig)
    agent = Agent(rig, "run-1", 1, 10)
    agent.turn(tag=HUMAN)
    step_until(rig, lambda: blocks_in(rig, agent) >= 10)
    crowd(rig)
    agent.turn(trace_headers=headers(3))
    (resume,) = named(exporter, RESUME_SPAN)
    events = {event.name: event for event in resume.events}
    assert {"agentkv.park", "agentkv.redecide"} == events.keys()
    assert events["agentkv.park"].attributes["agentkv.tier"] == "ssd"
    assert events["agentkv.park"].timestamp < resume.start_time
    assert resume.attributes["agentkv.tokens.promoted.ssd"] == 10 * 16
    assert resume.attributes["agentkv.source"] == "ssd"
    assert not resume.links, "the turn before it had no trace"


def test_a_request_without_a_trace_gets_none(make_rig: RigFactory) -> None:
    rig = make_rig()
    exporter = traced(rig)
    agent = Agent(rig, "run-1", 1, 6)
    agent.turn(trace_headers=headers(1))
    agent.turn()
    agent.turn(trace_headers=headers(2, flags="00"))  # Not sampled.
    assert [span.name for span in exporter.get_finished_spans()] == [PAUSE_SPAN]


def test_a_last_turn_has_no_pause(make_rig: RigFactory) -> None:
    rig = make_rig()
    exporter = traced(rig)
    agent = Agent(rig, "run-1", 1, 6)
    agent.turn(trace_headers=headers(1), tag={"last_turn": True})
    Agent(rig, "run-2", 2, 6).turn()
    assert not exporter.get_finished_spans()


def test_pauses_that_nobody_ends_are_forgotten(
    make_rig: RigFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pause_spans, "_MAX_PAUSES", 3)
    rig = make_rig()
    exporter = traced(rig)
    agents = [Agent(rig, f"run-{i}", i, 2) for i in range(5)]
    for agent in agents:
        agent.turn(trace_headers=headers(1))
    assert len(rig.side.below.spans._open) == 3
    agents[0].turn(trace_headers=headers(2))
    (resume,) = named(exporter, RESUME_SPAN)
    assert not resume.links and "agentkv.wait.actual_s" in resume.attributes


def test_a_tracer_that_fails_costs_no_turn(make_rig: RigFactory) -> None:
    rig = make_rig()
    traced(rig)
    rig.side.below.spans._tracer = None
    agent = Agent(rig, "run-1", 1, 6)
    for trace in (1, 2):
        agent.turn(trace_headers=headers(trace))
    assert rig.counter("agentkv:faults", "note") > 0
    rig.is_spoilt = True  # A fault is what `clean` looks for.


@pytest.mark.parametrize(("endpoint", "is_installed"), [(None, True), ("http://x:4317", False)])
def test_without_tracing_there_is_nothing(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, is_installed: bool, make_rig: RigFactory
) -> None:
    monkeypatch.setattr(pause_spans, "is_tracing_available", lambda: is_installed)
    observability = SimpleNamespace(otlp_traces_endpoint=endpoint)
    config: Any = SimpleNamespace(observability_config=observability)
    rig = make_rig()
    ledger = Ledger(rig.clock)
    offloading = rig.connector.connector_scheduler
    assert open_spans(config, ledger, offloading, rig.side.faults) is None
    assert ledger.on_record is None
    assert rig.side.below.spans is None, "vLLM's default"
