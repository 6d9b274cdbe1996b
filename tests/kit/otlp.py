"""A collector of traces as small as it can be: an OTLP endpoint that keeps the spans it gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service


class Collector(service.TraceServiceServicer):
    """`url` is what `--otlp-traces-endpoint` takes."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return messages.ExportTraceServiceResponse()

    def wait_for(self, name: str, is_it: Callable[[Any], bool], timeout_s: float = 120.0) -> Any:
        """The span of this name; exporters send in batches, every few seconds."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for span in list(self.spans):
                if span.name == name and is_it(span):
                    return span
            time.sleep(0.1)
        raise AssertionError(f"no span {name} among {sorted({s.name for s in self.spans})}")


def attributes(span: Any) -> dict[str, Any]:
    """Names and values, whatever their type."""
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Listens on a free port."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.url = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None)
