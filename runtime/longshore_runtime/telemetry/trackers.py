"""Trackers of `spec.tracking`: each gets the metrics of every step in a separate thread, and stops nothing.

A job is one run of a tracker, whatever its attempts: the run is found again by the uid of the job. Steps that a new
attempt repeats keep their first values. An evaluation after the last of them is sent, as an attempt may end before it.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore.api import contract
from longshore.api.addresses import redacted
from longshore.api.tracking import Tracking
from longshore_runtime.errors import first_line
from longshore_runtime.telemetry.background import CLOSE_LIMIT_S, Background
from longshore_runtime.telemetry.tracker import TrackedRun, Tracker

MAX_WAITING: Final = 1_000
"""Largest number of steps that wait for a tracker which is down; later ones are dropped."""
RETRY_S: Final = 30.0
"""Seconds between two attempts to reach a tracker."""


@dataclass(frozen=True)
class _Step:
    step: int
    values: Mapping[str, float]

    @property
    def is_evaluation(self) -> bool:
        return any(name.startswith("val/") for name in self.values)


@dataclass(frozen=True)
class _End:
    succeeded: bool | None
    """Whether the job succeeded; None: it may continue."""


class TrackerThread:
    """A tracker behind a bounded queue: while it is down, steps wait, and then they are dropped and counted."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        run: TrackedRun,
        on_trouble: Callable[[str], None],
        *,
        max_waiting: int = MAX_WAITING,
        retry_s: float = RETRY_S,
    ) -> None:
        """Start the thread; `on_trouble` is called once with the reason why a step was not sent, from any thread."""
        self._name = name
        self._make = make
        self._run = run
        self._on_trouble = on_trouble
        self._has_reported = threading.Event()
        self._is_closing = threading.Event()
        self._has_given_up = False
        self._retry_s = retry_s
        self._tracker: Tracker | None = None
        self._last_step = -1
        self._thread: Background[_Step | _End] = Background(f"tracker-{name}", self._handle, max_waiting, self._report)

    @property
    def num_lost(self) -> int:
        """Number of steps that the tracker did not get."""
        return self._thread.num_lost

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step; does not wait."""
        self._thread.give(_Step(step, values))

    def end(self, succeeded: bool | None) -> None:
        """Begin to send what waits, and whether the job succeeded (None: it may continue); `close` has to follow."""
        if not self._is_closing.is_set():
            self._is_closing.set()
            self._thread.give(_End(succeeded))

    def close(self, succeeded: bool | None, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Do what `end` does, unless it was called, and wait for it."""
        self.end(succeeded)
        self._thread.close(limit_s)

    def _handle(self, item: _Step | _End) -> None:
        """Send one item, with retries until it succeeds. After `close`, the first failure drops all items that wait."""
        if self._has_given_up:
            raise ConnectionError("it is not reached")
        while True:
            try:
                self._send(item)
                return
            except Exception as error:  # A service and its client fail in any way.
                if self._is_closing.is_set():
                    self._has_given_up = True
                    raise
                self._report(first_line(error))
            self._is_closing.wait(self._retry_s)

    def _send(self, item: _Step | _End) -> None:
        tracker = self._started()
        if isinstance(item, _Step):
            if item.step > self._last_step or (item.step == self._last_step and item.is_evaluation):
                tracker.log(item.step, {name: value for name, value in item.values.items() if math.isfinite(value)})
        elif item.succeeded is None:
            tracker.pause()
        else:
            tracker.finish(succeeded=item.succeeded)

    def _started(self) -> Tracker:
        if self._tracker is None:
            tracker = self._make()
            self._last_step = tracker.start(self._run)
            self._tracker = tracker
        return self._tracker

    def _report(self, reason: str) -> None:
        if not self._has_reported.is_set():
            self._has_reported.set()
            self._on_trouble(f"tracking.{self._name}: {redacted(reason)}; the job continues without it")


def trackers(tracking: Tracking, run: TrackedRun, on_trouble: Callable[[str], None]) -> list[TrackerThread]:
    """Start the trackers that a job names."""
    return [TrackerThread(name, make, run, on_trouble) for name, make in _makers(tracking)]


def _makers(tracking: Tracking) -> Iterator[tuple[str, Callable[[], Tracker]]]:
    """Return functions that make the trackers. They run in the trackers' threads, because imports take seconds."""

    def wandb() -> Tracker:
        from longshore_runtime.telemetry.wandb_tracker import WandbTracker

        assert tracking.wandb is not None
        return WandbTracker(tracking.wandb, token("wandb"))

    def mlflow() -> Tracker:
        from longshore_runtime.telemetry.mlflow_tracker import MlflowTracker

        assert tracking.mlflow is not None
        return MlflowTracker(tracking.mlflow, token("mlflow"))

    if tracking.wandb is not None:
        yield "wandb", wandb
    if tracking.mlflow is not None:
        yield "mlflow", mlflow


def token(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the token of a tracker, from the file that the operator mounts, or None if there is none."""
    directory = environment.get(contract.ENV_TRACKING_TOKENS)
    path = Path(directory or "/nonexistent") / name
    return path.read_text().strip() if directory and path.is_file() else None
