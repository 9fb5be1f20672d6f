"""Keep what a reward pod writes to its log until the coordinator fetches it.

    server, scoring processes ── descriptors 1 and 2 ──► pipe ──► thread `captured-log` ──► the log of the pod
                                                                            └──────────────► `take`, when it is asked

Reward pods mount the storage read-only, and their logs go with them: the coordinator writes what it fetches.
"""

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

MAX_LOG_BYTES: Final = 256 << 10
"""Bytes that are kept; older ones are dropped."""
_STREAMS: Final = (1, 2)


class CapturedLog:
    """The newest bytes of a log that have not been taken yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Lock for the bytes, which the thread that reads the pipe adds and the thread of the server takes."""
        self._kept = bytearray()
        self._num_dropped = 0

    def add(self, data: bytes) -> None:
        """Keep these bytes, and drop the oldest ones if there are too many."""
        with self._lock:
            self._kept += data
            num_excess = max(0, len(self._kept) - MAX_LOG_BYTES)
            del self._kept[:num_excess]
            self._num_dropped += num_excess

    def take(self) -> bytes:
        """Return what was added since the last call; the first line says if something is missing."""
        with self._lock:
            missing = f"... {self._num_dropped:,} bytes are missing here\n".encode() if self._num_dropped else b""
            taken = missing + bytes(self._kept)
            self._kept.clear()
            self._num_dropped = 0
        return taken

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Copy what this process, and those it starts, write to standard output and standard error."""
        originals = [os.dup(stream) for stream in _STREAMS]
        read, write = os.pipe()
        ended, end = os.pipe()
        thread = threading.Thread(
            target=self._copy, args=(read, ended, originals[-1]), name="captured-log", daemon=True
        )
        thread.start()
        for stream in _STREAMS:
            os.dup2(write, stream)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, original in zip(_STREAMS, originals, strict=True):
                os.dup2(original, stream)
            os.close(end)
            thread.join()
            for file in (read, write, ended, *originals):
                os.close(file)

    def _copy(self, read: int, ended: int, log: int) -> None:
        """Copy until the pipe `ended` is closed. The other one may stay open: processes that were started hold it."""
        os.set_blocking(read, False)
        both = select.poll()
        both.register(read, select.POLLIN)
        both.register(ended, 0)  # Its end is reported in any case.
        is_last = False
        while not is_last:
            is_last = ended in {file for file, _ in both.poll()}
            with suppress(BlockingIOError):  # Nothing more is there now.
                while data := os.read(read, 1 << 16):
                    self.add(data)
                    self._write(data, log)

    def _write(self, data: bytes, log: int) -> None:
        while data:
            data = data[os.write(log, data) :]
