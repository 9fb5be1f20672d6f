"""The host's end of an interpreter that keeps its state between calls.

    Interpreter ── RESUME, PAUSE ──► keeper ── SIGCONT, SIGSTOP ──┐
                ── code of a call ─────────────────────────► program (`interpreter_program`)
                ◄── number of the call that has ended ─────────┤
                ◄── output, all of it in one pipe ─────────────┘

Between calls, all processes of the program are stopped. What the program says about its calls is only a claim: one that
is not the expected answer ends the program, and all that it can change by it is what the model reads.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

from longshore_runtime.sandbox.interpreter_program import ANSWER, HEADER
from longshore_runtime.sandbox.keeper import PAUSE, RESUME
from longshore_runtime.sandbox.layers import SandboxLimits
from longshore_runtime.sandbox.worker import SandboxWorker

MAX_OUTPUT: Final = 10_000
"""Largest number of characters of the output of a call that the model reads."""
_CHUNK_BYTES: Final = 1 << 16


class InterpreterLost(Exception):
    """Raised when the sandbox has failed, not the code that ran in it; the message is one sentence."""


@dataclass(frozen=True)
class CallOutput:
    """What a call has printed, and how the interpreter has ended if it has."""

    text: str
    end: str | None
    """Why the interpreter has ended, as the end of a sentence; None: it has not."""


class Interpreter:
    """A running interpreter. Not thread-safe."""

    def __init__(self, worker: SandboxWorker, limits: SandboxLimits) -> None:
        """Start it in a fork of the worker's zygote; raises ZygoteDied."""
        self._control, self._channel, self._output = worker.start_interpreter()
        os.set_blocking(self._output, False)
        self._limits = limits
        self._num_calls = 0

    def call(self, code: str, limit_s: float) -> CallOutput:
        """Execute code; an interpreter that has ended must not be called again. Raises InterpreterLost."""
        self._num_calls += 1
        deadline_s = time.monotonic() + limit_s
        output = bytearray()
        end = self._begin(code, limit_s) or self._await_end(output, deadline_s, limit_s)
        if end is None:
            with contextlib.suppress(OSError):  # The next call notices.
                self._control.send(PAUSE)
        else:
            self.close()
        return CallOutput(_cut(output), end)

    def close(self) -> None:
        """End the interpreter, with everything that it has started."""
        self._control.close()
        self._channel.close()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def _begin(self, code: str, limit_s: float) -> str | None:
        source = code.encode("utf-8", "replace")
        try:
            if self._num_calls > 1:
                self._control.send(RESUME)
            self._channel.settimeout(limit_s)
            self._channel.sendall(HEADER.pack(self._num_calls, len(source)) + source)
        except TimeoutError:
            return "it did not read the code"
        except OSError:
            return None  # It has ended, and its keeper says why.
        return None

    def _await_end(self, output: bytearray, deadline_s: float, limit_s: float) -> str | None:
        """Collect output until the call has ended; return why the interpreter has ended, if it has."""
        with selectors.DefaultSelector() as selector:
            for file in (self._control, self._channel, self._output):
                selector.register(file, selectors.EVENT_READ)
            while (left_s := deadline_s - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(left_s)]
                if self._output in ready and not self._take(output):
                    selector.unregister(self._output)
                if self._channel in ready or self._control in ready:
                    while self._take(output):
                        continue  # What was written before the end.
                if len(output) > self._limits.output_bytes:
                    return f"a call wrote more than {self._limits.output_bytes >> 10:,} KiB"
                if self._control in ready:
                    return self._reported(_received(self._control))
                if self._channel in ready:
                    if answer := _received(self._channel):
                        is_right = answer == ANSWER.pack(self._num_calls)
                        return None if is_right else "it wrote to a descriptor that it must not use"
                    selector.unregister(self._channel)  # The program has closed it, or has just ended.
        return f"a call took longer than {limit_s:g} s"

    def _take(self, output: bytearray) -> int:
        """Take output that is there, up to the limit."""
        if len(output) > self._limits.output_bytes:
            return 0
        try:
            chunk = os.read(self._output, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        output += chunk
        return len(chunk)

    def _reported(self, report: bytes) -> str:
        result: dict[str, Any] = json.loads(report or '{"broken": "its keeper ended without a report"}')
        if "broken" in result:
            self.close()
            raise InterpreterLost(f"the sandbox of an interpreter has failed: {result['broken']}")
        if result["memory_exhausted"]:
            return f"it had more than {self._limits.memory_bytes >> 20:,} MiB of memory"
        if result["processes_exhausted"]:
            return f"it had more than {self._limits.num_processes} processes and threads"
        if (status := result["exit_status"]) >= 0:
            return f"it exited with status {status}"
        return f"it was killed by signal {-status} ({signal.strsignal(-status)})"


def _received(peer: socket.socket) -> bytes:
    """Return what a peer has sent, or nothing if it has ended."""
    try:
        return peer.recv(_CHUNK_BYTES)
    except ConnectionResetError:  # There was something that it has not read.
        return b""


def _cut(output: bytearray) -> str:
    """Return the output as text, without its middle if it is long."""
    text = output.decode("utf-8", "replace")
    if len(text) <= MAX_OUTPUT:
        return text
    half = MAX_OUTPUT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters are cut here ...]\n{text[-half:]}"
