"""Spans reach a collector by OTLP over HTTP: read with the protocol's own messages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from longshore.api.tracking import OpenTelemetry
from longshore.record.build import round_record
from longshore.record.model import ResponseRow, RoundRecord
from longshore_runtime.telemetry.trace_export import TraceExport
from tests.unit.record.facts import TAIL_BATCHING, played

RECORDS = [round_record(one.facts) for one in played(TAIL_BATCHING, 3, num_rounds=2)]


@dataclass
class Collector:
    """What came in."""

    port: int = 0
    status: int = 200
    paths: list[str] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    found = Collector(status=status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            found.paths.append(self.path)
            found.headers.append(self.headers["Authorization"])
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.port = server.server_port
        yield found
        server.shutdown()


def export(port: int, records: list[RoundRecord], token: str | None = None) -> tuple[TraceExport, list[str]]:
    reported: list[str] = []
    options = OpenTelemetry(endpoint=f"http://127.0.0.1:{port}/")
    exporter = TraceExport(options, token, {"longshore.job": "demo"}, reported.append)
    for record in records:
        exporter.give(record)
    exporter.close()
    return exporter, reported


def attributes(one: Any) -> dict[str, Any]:
    values = {item.key: item.value for item in one.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def test_every_step_is_a_trace_with_its_phases_and_responses() -> None:
    with collector() as found:
        exporter, reported = export(found.port, RECORDS, "key")
    assert (reported, exporter.num_lost) == ([], 0)
    assert set(found.paths) == {"/v1/traces"}
    assert set(found.headers) == {"Bearer key"}
    resource = attributes(found.requests[0].resource_spans[0].resource)
    assert (resource["service.name"], resource["longshore.job"]) == ("longshore", "demo")
    steps = [span for span in found.spans if span.name == "step"]
    assert [attributes(step)["longshore.step"] for step in steps] == [1, 2]
    assert len({step.trace_id for step in steps}) == 2
    by_id = {span.span_id: span for span in found.spans}
    for record, step in zip(RECORDS, steps, strict=True):
        of_step = [span for span in found.spans if span.trace_id == step.trace_id]
        phases = [span for span in of_step if span.parent_span_id == step.span_id]
        assert sorted(span.name for span in phases) == sorted(phase.name.value for phase in record.phases)
        responses = [span for span in of_step if span.name == "response"]
        assert len(responses) == len(record.responses)
        assert {by_id[span.parent_span_id].name for span in responses} == {"rollout"}
        assert step.start_time_unix_nano == pytest.approx(record.started * 1e9, abs=1e3)
        took_s = (step.end_time_unix_nano - step.start_time_unix_nano) / 1e9
        assert took_s == pytest.approx(record.duration_s, abs=1e-3)


def test_a_large_step_goes_in_several_requests_and_no_span_is_dropped() -> None:
    (first, *_) = RECORDS
    stay, row = first.requests[0], first.responses[0]
    ids = [f"0-{number}-0" for number in range(1_500)]
    rows: tuple[ResponseRow, ...] = tuple(row.model_copy(update={"response": one}) for one in ids)
    stays = tuple(stay.model_copy(update={"response": one}) for one in ids)
    with collector() as found:
        export(found.port, [first.model_copy(update={"responses": rows, "requests": stays})])
    assert len(found.requests) > 1
    assert sum(span.name == "response" for span in found.spans) == 1_500


def test_a_collector_that_refuses_is_reported_once_and_holds_nothing_up() -> None:
    with collector(status=403) as found:
        exporter, reported = export(found.port, RECORDS)
    assert exporter.num_lost == 2
    assert reported == ["tracking.openTelemetry: the collector does not take the spans; the job continues without it"]
