"""Log lines: one event with its fields, to standard error, and to a file in the storage that outlives the pod."""

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog

from longshore.api.addresses import redacted


def configure_logging(copy_to: Path | None = None) -> None:
    """Log readable lines without colours, because they are read through `kubectl logs`."""
    files: list[TextIO] = [sys.stderr]
    if copy_to is not None:
        copy_to.parent.mkdir(parents=True, exist_ok=True)
        files.append(copy_to.open("a", encoding="utf-8", buffering=1))
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=False, pad_event_to=0, pad_level=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Lines(files),
        cache_logger_on_first_use=False,
    )


class _Lines:
    """A logger in structlog's sense: every line goes to all files."""

    def __init__(self, files: list[TextIO]) -> None:
        self._files = files

    def msg(self, message: str) -> None:
        """Write one line."""
        message = redacted(message)
        for file in tuple(self._files):
            try:
                print(message, file=file, flush=True)
            except OSError as error:
                if file is sys.stderr:
                    raise
                # The copy is lost; the pod's own log goes on, and says so.
                self._files.remove(file)
                sys.stderr.write(f"the log is no longer copied to {file.name}: {error}\n")

    log = debug = info = warning = error = critical = exception = msg
