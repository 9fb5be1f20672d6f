"""Metrics of a run under the names that verl users know: TensorBoard, JSON lines, Prometheus, and trackers."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.step_gauges import StepGauges
from longshore_runtime.telemetry.trackers import TrackerThread


class MetricsWriter:
    """Write the metrics of each step to `<output>/tensorboard`, `<output>/metrics.jsonl` and all other places."""

    def __init__(
        self,
        output: Path,
        registry: CollectorRegistry,
        trackers: Sequence[TrackerThread] = (),
        *,
        tensor_board: bool = True,
    ) -> None:
        self._trackers = trackers
        self._writer = EventFileWriter(str(output / "tensorboard")) if tensor_board else None
        self.journal = Journal(output / "metrics.jsonl")
        self._gauges = StepGauges(registry)

    def rewind(self, step: int, position: int) -> None:
        """Resume after `step`: values of later steps are replaced. `position`: size of the journal then, in bytes."""
        self.journal.rewind(position)
        if self._writer is not None:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step."""
        self._record(step, values)
        self._gauges.show_step(values)

    def write_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of the evaluation after a step."""
        self._record(step, values)
        self._gauges.show_evaluation(values)

    def _record(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is not None:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
            self._writer.flush()
        for tracker in self._trackers:
            tracker.log(step, values)
        self.journal.append({"step": step, **values})

    def close(self) -> None:
        """Flush and close the files, and leave the registry to the next session."""
        if self._writer is not None:
            self._writer.close()
        self._gauges.close()
