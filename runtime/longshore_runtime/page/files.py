"""Read the files of a job for its page. Writers rename complete files into place, or append whole lines."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow.parquet
import structlog

from longshore.page import samples, timeline
from longshore.page.build import MAX_DIGESTS
from longshore.page.curves import MetricsByStep, add_rows, curves_of
from longshore.page.view import Curves, RoundDigest, RoundView, SampleGroup
from longshore.record import model
from longshore.record.model import RoundRecord

log = structlog.get_logger()


class SampleKind(StrEnum):
    """Purpose that responses were sampled for: the directory that has them.

    Defined here again because `telemetry.samples` imports Ray, which a report does without.
    """

    TRAINING = "samples"
    HELD_OUT = "held-out"


_SAMPLE_FILE: Final = re.compile(r"step-(\d{6,})\.parquet", re.ASCII)


@dataclass(frozen=True)
class _Known:
    """Content of a file, with the time when it was written."""

    written_ns: int
    digest: RoundDigest | None


class JobFiles:
    """The output directory of a job. Methods block, and only one thread at a time may call them.

    Methods raise FileNotFoundError for files that have been deleted, because storage has a limit or a run was rewound.
    """

    def __init__(self, output: Path) -> None:
        self._metrics = output / "metrics.jsonl"
        self._rounds = output / model.DIRECTORY
        self._samples = {kind: output / kind for kind in SampleKind}
        self._digests: dict[int, _Known] = {}
        self._curves: tuple[tuple[int, int], Curves] | None = None
        """Curves, with the size and time of the file that they were read from."""
        self._by_step: MetricsByStep = {}
        """Metrics of the lines before `_position`."""
        self._position = 0
        self._last_line = b""
        """Line that ends at `_position`."""

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Return a version of the directory, which changes with every write."""
        return tuple(_state(path) for path in (self._metrics, self._rounds, *self._samples.values()))

    def curves(self) -> Curves:
        """Return metrics by step. Only lines that were written since the last call are read."""
        written = _state(self._metrics)
        if self._curves is None or self._curves[0] != written:
            add_rows(self._by_step, self._new_rows())
            self._curves = written, curves_of(self._by_step)
        return self._curves[1]

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics as they are stored, line by line, without damaged lines."""
        if not self._metrics.exists():
            self._by_step.clear()
            self._position, self._last_line = 0, b""
            return
        with self._metrics.open("rb") as lines:
            lines.seek(max(0, self._position - len(self._last_line)))
            if lines.read(len(self._last_line)) != self._last_line:
                # A run that continued from a checkpoint has cut off lines and written others.
                self._by_step.clear()
                self._position, self._last_line = 0, b""
                lines.seek(0)
            for line in lines:
                if not line.endswith(b"\n"):
                    return  # It is being written.
                self._position, self._last_line = self._position + len(line), line
                try:
                    row = orjson.loads(line)
                    if int(row["step"]) >= 0:
                        yield row
                except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
                    log.warning(
                        "a line cannot be shown", file=self._metrics.name, end=self._position, reason=str(error)
                    )

    def round_steps(self) -> list[int]:
        """Return the steps with a record of their round."""
        return _steps(self._rounds, model.step_of)

    def digests(self, most_new: int | None = None) -> tuple[list[RoundDigest], bool]:
        """Return the last rounds, oldest first, and whether these are all.

        `most_new`: how many records this call may read, newest first. Reading one of a large round takes 0.1 s.
        """
        steps = self.round_steps()[-MAX_DIGESTS:]
        found: dict[int, _Known] = {}
        num_new = 0
        for step in reversed(steps):
            try:
                written_ns = (self._rounds / model.file_name(step)).stat().st_mtime_ns
                known = self._digests.get(step)
                if known is None or known.written_ns != written_ns:
                    if num_new == most_new:
                        continue
                    num_new += 1
                    known = _Known(written_ns, self._digest(step))
                found[step] = known
            except FileNotFoundError:
                continue
        self._digests = found
        digests = [found[step].digest for step in steps if step in found]
        return [digest for digest in digests if digest is not None], num_new != most_new

    def round(self, step: int, max_stays: int = timeline.MAX_STAYS) -> RoundView:
        """Return the timeline of a round."""
        return timeline.round_view(self._record(step), max_stays)

    def sample_steps(self, kind: SampleKind) -> list[int]:
        """Return the steps with samples."""
        return _steps(self._samples[kind], _sample_step)

    def heads(self, kind: SampleKind, step: int) -> tuple[SampleGroup, ...]:
        """Return the groups of a step without their responses."""
        return samples.heads(self._rows_of(kind, step, columns=list(samples.HEAD_COLUMNS)))

    def groups(self, kind: SampleKind, step: int, draw: str | None = None) -> tuple[SampleGroup, ...]:
        """Return the groups of a step, or only the group of one draw."""
        return samples.groups(self._rows_of(kind, step, filters=draw and [("draw", "=", draw)]))

    def _digest(self, step: int) -> RoundDigest | None:
        """Return the digest of a round; None for a file that cannot be read, which is left out."""
        try:
            return timeline.digest(self._record(step))
        except ValueError as error:
            log.warning("a round cannot be shown", step=step, reason=str(error).splitlines()[0])
            return None

    def _record(self, step: int) -> RoundRecord:
        return RoundRecord.from_bytes((self._rounds / model.file_name(step)).read_bytes())

    def _rows_of(self, kind: SampleKind, step: int, **options: Any) -> list[dict[str, Any]]:
        path = self._samples[kind] / sample_file(step)
        if not path.exists():
            raise FileNotFoundError(path)
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path, **options).to_pylist()
        return rows


def _steps(directory: Path, step_of: Callable[[str], int | None]) -> list[int]:
    if not directory.is_dir():
        return []
    found = (step_of(path.name) for path in directory.iterdir())
    return sorted(step for step in found if step is not None)


def sample_file(step: int) -> str:
    """Return the name of the file with the samples of a step."""
    return f"step-{step:06d}.parquet"


def _sample_step(name: str) -> int | None:
    match = _SAMPLE_FILE.fullmatch(name)
    return int(match[1]) if match else None


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
