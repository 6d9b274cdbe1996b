"""Pauses in the traces of the requests around them, where vLLM's tracing is on (OpenTelemetry).

    a turn ends in a pause ──► span agentkv.pause in its trace: what was decided, and why
    the next turn gets its blocks ──► span agentkv.resume in its trace, linked to the first: the
                                      wait predicted and real, tokens by where they came from

Why spans of our own: vLLM's `llm_request` is made and ended at once in the API process, so nothing
can be added to it; these are its siblings. Made of the ledger's records, in the engine's process,
which has vLLM's exporter. A request without a `traceparent` header gets none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.tracing import extract_trace_context, is_tracing_available
from vllm.v1.request import Request

from agentkv.ledger import Ledger, Record

from .guard import Faults, never_raises

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Tracer

PAUSE_SPAN, RESUME_SPAN = "agentkv.pause", "agentkv.resume"

# Of ledger records, in this order: attribute names without "agentkv.".
_OF_PAUSE = {
    "session_id": "session_id",
    "pause_id": "pause_id",
    "tool": "tool",
    "command_class": "command_class",
    "action": "action",
    "reason": "reason",
    "estimate_p10_s": "wait.predicted_p10_s",
    "estimate_p50_s": "wait.predicted_p50_s",
    "estimate_p90_s": "wait.predicted_p90_s",
    "break_even_s": "break_even_s",
    "context_tokens": "context_tokens",
    "kv_bytes": "kv_bytes",
    "pressure": "pressure",
}
_OF_RESUME = {
    "session_id": "session_id",
    "pause_id": "pause_id",
    "action": "action",
    "tier": "source",
    "wait_s": "wait.actual_s",
    "queued_s": "queued_s",
    "gpu_hit_tokens": "tokens.gpu",
    "dram_hit_tokens": "tokens.dram",
    "recomputed_tokens": "tokens.recomputed",
    "best_action": "best_action",
    "regret_s": "regret_s",
}
_OF_EVENT = {
    "redecide": {"action": "action", "reason": "reason", "age_s": "age_s", "pressure": "pressure"},
    "park": {"tier": "tier", "num_blocks": "num_blocks", "is_whole": "is_whole"},
}
_MAX_PAUSES = 4096
_MAX_EVENTS = 32


@dataclass(slots=True)
class _OpenPause:
    """`events`: name, attributes and time in ns of what became of it meanwhile."""

    predicted_s: float | None
    link: Link | None = None
    events: list[tuple[str, dict[str, Any], int]] = field(default_factory=list)


class PauseSpans:
    """Owned by the scheduler thread. Keeps the last 4,096 pauses; what it cannot do is a fault."""

    def __init__(
        self, tracer: Tracer, offloading: OffloadingConnectorScheduler, faults: Faults
    ) -> None:
        self.faults = faults
        self._tracer = tracer
        self._offloading = offloading
        self._open: OrderedDict[Any, _OpenPause] = OrderedDict()
        self._ending: Mapping[str, str] | None = None

    @never_raises
    def note_finished(self, request: Request) -> None:
        """A turn ends: the record of its pause follows, if there is one."""
        self._ending = request.trace_headers

    @never_raises
    def note(self, record: Record) -> None:
        """The ledger has a new record."""
        kind = record["kind"]
        if kind == "pause":
            self._begin(record, self._ending)
        elif kind == "resume":
            status = self._offloading._req_status.get(record["request_id"])
            opened = self._open.pop(record["pause_id"], None)
            if status is not None and status.req.trace_headers:
                self._resume(record, status.req.trace_headers, opened)
        elif kind in _OF_EVENT and (opened := self._open.get(record["pause_id"])) is not None:
            event = (kind, _attributes(record, _OF_EVENT[kind]), _ns(record["t"]))
            opened.events.extend([event] if len(opened.events) < _MAX_EVENTS else ())

    def _begin(self, record: Record, headers: Mapping[str, str] | None) -> None:
        opened = self._open[record["pause_id"]] = _OpenPause(record["estimate_p50_s"])
        if len(self._open) > _MAX_PAUSES:
            self._open.popitem(last=False)
        if not headers:
            return
        from opentelemetry.trace import Link

        now_ns = _ns(record["t"])
        span = self._tracer.start_span(
            PAUSE_SPAN,
            context=extract_trace_context(headers),
            attributes=_attributes(record, _OF_PAUSE),
            start_time=now_ns,
        )
        span.end(end_time=now_ns)
        opened.link = Link(span.get_span_context())

    def _resume(
        self, record: Record, headers: Mapping[str, str], opened: _OpenPause | None
    ) -> None:
        attributes = _attributes(record, _OF_RESUME)
        for tier, num_tokens in record["promoted_tokens"].items():
            attributes[f"agentkv.tokens.promoted.{tier}"] = num_tokens
        if opened is not None and opened.predicted_s is not None:
            attributes["agentkv.wait.predicted_p50_s"] = opened.predicted_s
        span = self._tracer.start_span(
            RESUME_SPAN,
            context=extract_trace_context(headers),
            attributes=attributes,
            links=[opened.link] if opened is not None and opened.link is not None else None,
            start_time=_ns(record["t"] - record["queued_s"]),
        )
        for name, of_event, time_ns in opened.events if opened is not None else ():
            span.add_event(f"agentkv.{name}", of_event, timestamp=time_ns)
        span.end(end_time=_ns(record["t"]))


def open_spans(
    vllm_config: VllmConfig,
    ledger: Ledger,
    offloading: OffloadingConnectorScheduler,
    faults: Faults,
) -> PauseSpans | None:
    """Spans for what this ledger records; None where vLLM's tracing is off, at no cost."""
    endpoint = vllm_config.observability_config.otlp_traces_endpoint
    if endpoint is None or not is_tracing_available():
        return None
    from opentelemetry import trace

    spans = PauseSpans(trace.get_tracer("agentkv"), offloading, faults)
    ledger.on_record = spans.note
    return spans


def _attributes(record: Record, names: Mapping[str, str]) -> dict[str, Any]:
    """OpenTelemetry takes no None."""
    values = {name: record.get(field_name) for field_name, name in names.items()}
    return {f"agentkv.{name}": value for name, value in values.items() if value is not None}


def _ns(wall_s: float) -> int:
    return int(wall_s * 1e9)
