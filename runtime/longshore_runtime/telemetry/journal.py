"""Append-only JSON lines that survive restarts of a job. On resume, lines after the checkpoint are cut off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import structlog

from longshore_runtime.process.durable import sync

log = structlog.get_logger()


class Journal:
    """File with one line per step. `position` goes into checkpoints; `rewind` returns to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    @property
    def position(self) -> int:
        """Size of the file in bytes, after making sure that all of it is on the disk."""
        sync(self._path)
        return self._path.stat().st_size

    def rewind(self, position: int) -> None:
        """Cut off what was written after `position`, in bytes. Of a file that is shorter by now, whole lines stay."""
        if position > self._path.stat().st_size:
            log.warning("somebody has shortened a file; what is missing stays missing", file=self._path.name)
            position = self._path.read_bytes().rfind(b"\n") + 1
        with self._path.open("r+b") as file:
            file.truncate(position)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line."""
        with self._path.open("ab") as file:
            file.write(orjson.dumps(dict(row), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY))
