"""Send spans of every step to a collector, by OTLP over HTTP in a separate thread."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from longshore.api.tracking import OpenTelemetry
from longshore.record.model import RoundRecord
from longshore.record.spans import Span, step_span
from longshore_runtime.telemetry.background import CLOSE_LIMIT_S, Background

_MAX_WAITING: Final = 16
"""Largest number of steps that wait for the collector."""
_SPANS_PER_REQUEST: Final = 512
_ANSWER_LIMIT_S: Final = 10.0


class TraceExport:
    """Exporter of steps, each as a trace of its own."""

    def __init__(
        self,
        options: OpenTelemetry,
        token: str | None,
        attributes: Mapping[str, str],
        on_trouble: Callable[[str], None],
    ) -> None:
        """Start the exporter; `attributes` are those of the job, on every span."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._exporter = OTLPSpanExporter(
            f"{options.endpoint.rstrip('/')}/v1/traces", headers=headers, timeout=_ANSWER_LIMIT_S
        )
        self._ended = _Ended()
        provider = TracerProvider(ALWAYS_ON, Resource({"service.name": "longshore", **attributes}))
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("longshore")
        self._thread: Background[RoundRecord] = Background(
            "trace-export",
            self._export,
            _MAX_WAITING,
            lambda reason: on_trouble(f"tracking.openTelemetry: {reason}; the job continues without it"),
        )

    @property
    def num_lost(self) -> int:
        """Number of steps whose spans were not sent."""
        return self._thread.num_lost

    def give(self, record: RoundRecord) -> None:
        """Send the spans of a recorded step; does not wait."""
        self._thread.give(record)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Send what waits, and end."""
        self._thread.close(limit_s)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _export(self, record: RoundRecord) -> None:
        self._make(step_span(record), None)
        for some in _batches(self._ended.take()):
            if self._exporter.export(some) is not SpanExportResult.SUCCESS:
                raise ConnectionError("the collector does not take the spans")

    def _make(self, span: Span, parent: trace.Span | None) -> None:
        context = None if parent is None else trace.set_span_in_context(parent)
        made = self._tracer.start_span(
            span.name, context, attributes=dict(span.attributes), start_time=_nanoseconds(span.start)
        )
        for child in span.children:
            self._make(child, made)
        made.end(_nanoseconds(span.end))


class _Ended(SpanProcessor):
    """Collects spans that have ended. The processors of the SDK drop spans if a large step ends many at once."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        """Return all spans so far, and forget them."""
        spans, self._spans = self._spans, []
        return spans


def _batches(spans: Sequence[ReadableSpan]) -> list[Sequence[ReadableSpan]]:
    return [spans[first : first + _SPANS_PER_REQUEST] for first in range(0, len(spans), _SPANS_PER_REQUEST)]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
