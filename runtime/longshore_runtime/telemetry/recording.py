"""Put together what records the steps of a session: files in the output, and spans for a collector."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from longshore.api.reasons import NoticeReason
from longshore.api.records import Records
from longshore.api.tracking import OpenTelemetry
from longshore_runtime.telemetry.samples import Decoder
from longshore_runtime.telemetry.step_done import JobFacts, Places
from longshore_runtime.telemetry.step_records import StepRecords
from longshore_runtime.telemetry.trace_export import TraceExport
from longshore_runtime.telemetry.trackers import token

Notify = Callable[[str, str], None]
"""Reason and message of something that went wrong; called from any thread."""


@contextlib.contextmanager
def recording(
    output: Path,
    records: Records,
    collector: OpenTelemetry | None,
    job: JobFacts,
    names: Mapping[str, str],
    decoder: Decoder,
    places: Callable[[], Places],
    notify: Notify,
) -> Iterator[StepRecords]:
    """Record steps within the block; at its end, write and send what waits. `names`: attributes of all spans."""
    with contextlib.ExitStack() as stack:
        export = None
        if collector is not None:
            on_trouble = _notify_with(notify, NoticeReason.TRACKER_FAILED)
            export = TraceExport(collector, token("openTelemetry"), names, on_trouble)
            stack.callback(export.close)
        steps = StepRecords(
            output,
            records,
            job,
            decoder,
            places,
            _notify_with(notify, NoticeReason.RECORDS_INCOMPLETE),
            None if export is None else export.give,
        )
        stack.callback(steps.close)
        yield steps


def _notify_with(notify: Notify, reason: NoticeReason) -> Callable[[str], None]:
    return lambda message: notify(reason.value, message)
