"""Put together what records the steps of a session: files in the output, and spans for a collector."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from longshore.api.reasons import NoticeReason
from longshore.api.records import Records
from longshore.api.tracking import OpenTelemetry
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
    places: Callable[[], Places],
    notify: Notify,
    left_s: Callable[[], float],
) -> Iterator[StepRecords]:
    """Record steps within the block; at its end, write and send what waits, for as long as `left_s` says.

    `names`: attributes of all spans.
    """
    with contextlib.ExitStack() as stack:
        export = None
        if collector is not None:
            on_trouble = _notify_with(notify, NoticeReason.TRACKER_FAILED)
            export = TraceExport(collector, token("openTelemetry"), names, on_trouble)
            stack.callback(lambda: export.close(left_s()))
        steps = StepRecords(
            output,
            records,
            job,
            places,
            _notify_with(notify, NoticeReason.RECORDS_INCOMPLETE),
            None if export is None else export.give,
        )
        stack.callback(lambda: steps.close(left_s()))
        yield steps


def _notify_with(notify: Notify, reason: NoticeReason) -> Callable[[str], None]:
    return lambda message: notify(reason.value, message)
