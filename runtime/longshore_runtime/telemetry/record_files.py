"""Write one file per step to a directory, with a limit of bytes for all of them.

A file is written at once or not at all, and replaced when its step is repeated.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from longshore_runtime.process.durable import write_whole

_MOST_SPARED_BYTES: Final = 4 << 30
_SPARED_SHARE: Final = 0.05
"""Share of a volume that records leave free: a checkpoint without room ends the job, a lost record does not."""


class StepFiles:
    """Files such as `step-000012.parquet`; unfinished ones are hidden, so readers only see complete files."""

    def __init__(self, directory: Path, prefix: str, suffix: str, max_bytes: int) -> None:
        self._directory = directory
        self._prefix, self._suffix = prefix, suffix
        self._name = re.compile(rf"{re.escape(prefix)}(\d{{6,}}){re.escape(suffix)}", re.ASCII)
        self._max_bytes = max_bytes

    def rewind(self, step: int) -> None:
        """Delete files of steps after `step`, and unfinished ones."""
        if not self._directory.is_dir():
            return
        for path in self._directory.glob(f".{self._prefix}*"):
            path.unlink(missing_ok=True)  # A thread that an earlier session left behind may still be writing it.
        for number, path in list(self._files()):
            if number > step:
                path.unlink()

    def write(self, step: int, content: bytes) -> None:
        """Write the file of a step, replacing the one of an earlier attempt.

        Raises:
            ValueError: `content` exceeds the limit.
            OSError: the volume has no room.
        """
        if len(content) > self._max_bytes:
            raise ValueError(
                f"the record of step {step} has {len(content):,} bytes, more than {self._max_bytes:,} bytes for all"
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        _require_spare_room(self._directory, len(content))
        self._make_room(step, self._max_bytes - len(content))
        write_whole(self._directory / f"{self._prefix}{step:06d}{self._suffix}", content)

    def _make_room(self, step: int, max_bytes: int) -> None:
        """Delete the oldest steps until the others fit."""
        files = [(number, path, path.stat().st_size) for number, path in self._files() if number != step]
        num_bytes = sum(size for *_, size in files)
        for _, path, size in files:
            if num_bytes <= max_bytes:
                return
            path.unlink()
            num_bytes -= size

    def _files(self) -> Iterator[tuple[int, Path]]:
        """Yield step and path of every file, oldest step first."""
        found = ((self._name.fullmatch(path.name), path) for path in self._directory.iterdir())
        yield from sorted((int(match[1]), path) for match, path in found if match)


def _require_spare_room(directory: Path, num_bytes: int) -> None:
    total, _, free = shutil.disk_usage(directory)
    if free - num_bytes < min(_MOST_SPARED_BYTES, _SPARED_SHARE * total):
        raise OSError(f"the volume is nearly full ({free:,} bytes are free), and the rest is left to checkpoints")
