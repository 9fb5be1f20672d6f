"""Work that is repeated in the background while something else takes its time: reports of progress."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

log = structlog.get_logger()

PROGRESS_EVERY_S: Final = 2.0
"""Seconds between two reports of progress: people see it move, and the API server hardly notices."""


@contextmanager
def repeated(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `work` every `every_s` in a thread of its own; the last call has returned when the block is left.

    The first call comes after `every_s`, so that what is quick causes none. Work that fails is logged and not repeated.
    """
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(every_s):
            try:
                work()
            except Exception as error:  # noqa: BLE001 - a report that fails must not end what it reports
                log.warning("progress is not reported", reason=f"{type(error).__name__}: {error}")
                return

    thread = threading.Thread(target=run, name="repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
