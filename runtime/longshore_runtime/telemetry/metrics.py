"""Metrics of a run under the names that verl users know: TensorBoard, JSON lines, and Prometheus."""

import time
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from longshore_runtime.telemetry.journal import Journal


class Metrics:
    """Writes the metrics of each step to `<output>/tensorboard` and `<output>/metrics.jsonl`."""

    def __init__(self, output: Path, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._writer = EventFileWriter(str(output / "tensorboard"))
        self.journal = Journal(output / "metrics.jsonl")
        self._gauge = Gauge("longshore_step_metric", "Metric of the last training step", ["name"], registry=registry)

    def rewind(self, step: int, position: int) -> None:
        """Resume after `step`: later values are replaced."""
        self.journal.rewind(position)
        self._writer.add_event(
            Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START))
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Values of one step."""
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
        self.journal.append({"step": step, **values})
        for name, value in values.items():
            self._gauge.labels(name=name).set(value)

    def close(self) -> None:
        """Flush and close the files, and leave the registry to the next session."""
        self._writer.close()
        self._registry.unregister(self._gauge)
