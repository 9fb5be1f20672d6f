"""Records of finished steps, written by a separate thread: `samples/`, `held-out/` and `rounds/`, and traces."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from longshore.api.records import Records
from longshore.record import model
from longshore.record.build import round_record
from longshore.record.model import RoundRecord
from longshore_runtime.telemetry import samples
from longshore_runtime.telemetry.background import CLOSE_LIMIT_S, Background
from longshore_runtime.telemetry.record_files import StepFiles
from longshore_runtime.telemetry.step_done import EvaluationDone, JobFacts, Places, StepDone, round_facts

_MAX_ROUNDS_BYTES: Final = 1 << 30
"""Largest size of `rounds/`; the oldest steps are deleted first."""
MAX_WAITING: Final = 3
"""Largest number of steps and evaluations that wait; each keeps all its tokens in memory until it is written."""


class StepSink(Protocol):
    """Receiver of finished steps and evaluations."""

    def rewind(self, step: int) -> None:
        """Prepare for a run that continues after `step`; 0: that begins."""

    def keep(self, done: StepDone) -> None:
        """Record a finished step; does not wait."""

    def keep_evaluation(self, done: EvaluationDone) -> None:
        """Record an evaluation; does not wait."""


class NoRecords:
    """Implements `StepSink` without recording anything."""

    def rewind(self, step: int) -> None:
        """Do nothing."""

    def keep(self, done: StepDone) -> None:
        """Do nothing."""

    def keep_evaluation(self, done: EvaluationDone) -> None:
        """Do nothing."""


class StepRecords:
    """Write the files of finished steps, and pass each record of a round on."""

    def __init__(
        self,
        output: Path,
        options: Records,
        job: JobFacts,
        places: Callable[[], Places],
        on_trouble: Callable[[str], None],
        on_record: Callable[[RoundRecord], None] | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """Record steps in a thread of this object.

        Args:
            places: called in the driver's thread.
            on_trouble: called once in the thread of this object, if a step is not recorded.
            on_record: called in the thread of this object with every record.
        """
        self._options = options
        self._job = job
        self._places = places
        self._on_record = on_record
        self._samples = StepFiles(output / samples.DIRECTORY, samples.PREFIX, samples.SUFFIX, options.max_samples_bytes)
        self._held_out = StepFiles(
            output / samples.HELD_OUT_DIRECTORY, samples.PREFIX, samples.SUFFIX, options.max_samples_bytes
        )
        self._rounds = StepFiles(output / model.DIRECTORY, model.PREFIX, model.SUFFIX, _MAX_ROUNDS_BYTES)
        self._thread: Background[tuple[StepDone, Places] | EvaluationDone | int] = Background(
            "step-records", self._write, max_waiting, on_trouble
        )

    @property
    def num_lost(self) -> int:
        """Number of steps whose record is missing or incomplete."""
        return self._thread.num_lost

    def rewind(self, step: int) -> None:
        """Remove records of steps after `step`, from which the run continues; waits only while the queue is full."""
        # Steps from before a recovery may still be on their way to the disk: their files go after they were written.
        self._thread.give_surely(step)

    def keep(self, done: StepDone) -> None:
        """Record a finished step; does not wait."""
        self._thread.give((done, self._places()))

    def keep_evaluation(self, done: EvaluationDone) -> None:
        """Record an evaluation; does not wait."""
        self._thread.give(done)

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Write what waits, and end."""
        self._thread.close(limit_s)

    def _write(self, item: tuple[StepDone, Places] | EvaluationDone | int) -> None:
        if isinstance(item, int):
            for files in (self._samples, self._held_out, self._rounds):
                files.rewind(item)
        elif isinstance(item, EvaluationDone):
            self._write_samples(item, self._held_out)
        else:
            self._write_samples(item[0], self._samples)
            self._write_round(*item)

    def _write_samples(self, done: StepDone | EvaluationDone, files: StepFiles) -> None:
        if self._options.sample_share > 0 and self._options.max_samples_bytes:
            content = samples.samples_file(done, self._job, self._options.sample_share)
            if content is not None:
                files.write(done.step, content)

    def _write_round(self, done: StepDone, places: Places) -> None:
        record = round_record(round_facts(done, places, self._job))
        self._rounds.write(done.step, record.to_bytes())
        if self._on_record is not None:
            self._on_record(record)
