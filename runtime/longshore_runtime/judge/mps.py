"""NVIDIA's Multi-Process Service: judge and actor compute on one GPU at the same time (RollPacker, section 4.3).

Without it the GPU serves one process after the other (time slicing). A control daemon belongs to one container: it is
started there, with pipes and logs of its own, and clients find it through their environment. MPS does not isolate
errors: a fatal fault of one client ends all clients on that GPU.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import structlog

from longshore_runtime.judge.gpus import obstacle, visible_gpus

log = structlog.get_logger()

CONTROL_PROGRAM: Final = "nvidia-cuda-mps-control"
PIPE_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"

_LOG_VARIABLE: Final = "CUDA_MPS_LOG_DIRECTORY"
PINNED_MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MAX_FAILURES: Final = 5
"""Number of failures in a row of the daemon to report the state of its servers that count as a fault."""
_START_TIMEOUT_S: Final = 30.0
_COMMAND_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 20.0
_TICK_S: Final = 0.05
_MAX_SOCKET_PATH: Final = 107
"""Longest path of a Unix socket; the daemon's are called control, log and the like."""


class MpsError(Exception):
    """Raised when the daemon does not start or does not answer; the message is one sentence."""


class SharingMode(StrEnum):
    """Way in which processes share a GPU."""

    MPS = "MPS"
    TIME_SLICING = "TimeSlicing"


@dataclass(frozen=True)
class GpuSharing:
    """Way in which the GPUs of this container are shared, and the reason."""

    mode: SharingMode
    reason: str
    daemon: "MpsDaemon | None" = None
    """Daemon to watch and to stop; None with time slicing, and where the node runs the daemon."""
    pipe_directory: Path | None = None

    def client_environment(self) -> dict[str, str]:
        """Return what a client process needs in its environment before it first touches CUDA."""
        return {} if self.pipe_directory is None else {PIPE_VARIABLE: str(self.pipe_directory)}


def share_gpus(directory: Path, environment: Mapping[str, str] = os.environ) -> GpuSharing:
    """Start MPS in `directory` where possible; otherwise time slicing, with the reason. Never raises for MPS."""
    gpus = visible_gpus(environment)
    if isinstance(gpus, str):
        return GpuSharing(SharingMode.TIME_SLICING, gpus)
    if given := environment.get(PIPE_VARIABLE):
        reason = f"the node runs a daemon behind {PIPE_VARIABLE}={given}"
        return GpuSharing(SharingMode.MPS, reason, pipe_directory=Path(given))
    program = shutil.which(CONTROL_PROGRAM, path=environment.get("PATH"))
    if program is None:
        return GpuSharing(SharingMode.TIME_SLICING, f"{CONTROL_PROGRAM} is not in this container")
    if against := obstacle(gpus):
        return GpuSharing(SharingMode.TIME_SLICING, against)
    try:
        daemon = MpsDaemon(program, directory, environment)
    except MpsError as error:
        return GpuSharing(SharingMode.TIME_SLICING, str(error))
    return GpuSharing(SharingMode.MPS, f"a daemon runs in {directory}", daemon, daemon.pipe_directory)


class MpsDaemon:
    """A control daemon of this process, in the foreground of a separate session."""

    def __init__(self, program: str, directory: Path, environment: Mapping[str, str]) -> None:
        """Start the daemon and wait until it answers; raises MpsError."""
        self._program = program
        self._num_failures = 0
        """Number of failures in a row to report the state of the servers."""
        self._log_directory = directory / "log"
        self.pipe_directory = directory / "pipe"
        """Directory in which clients reach it."""
        self._environment = {
            **environment,
            PIPE_VARIABLE: str(self.pipe_directory),
            _LOG_VARIABLE: str(self._log_directory),
        }
        if len(str(self.pipe_directory / "control_privileged")) > _MAX_SOCKET_PATH:
            raise MpsError(f"the path {str(directory)!r} is too long for sockets")
        try:
            self._process = self._start()
        except OSError as error:
            raise MpsError(f"{CONTROL_PROGRAM} does not start ({error})") from error
        self._await_answer(time.monotonic() + _START_TIMEOUT_S)

    @property
    def process_id(self) -> int:
        """Leader of the session of the daemon and its servers."""
        return self._process.pid

    def ask(self, command: str) -> str:
        """Return the answer to a command of the control interface; raises MpsError."""
        try:
            done = subprocess.run(
                [self._program],
                input=command + "\n",
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MpsError(f"the MPS daemon did not answer {command!r} within {_COMMAND_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise MpsError(f"the MPS daemon cannot be asked {command!r} ({error})") from error
        if done.returncode != 0:
            raise MpsError(f"the MPS daemon answered {command!r} with status {done.returncode}: {_last_line(done)}")
        return done.stdout

    def fault(self) -> str | None:
        """Return what is wrong, if anything, in one sentence.

        After a fault every client must end before any can start again.

        The daemon's end and a server in state FAULT are faults at once. Where it does not tell, because the machine is
        busy or a server ends just now, it is asked again the next time, until it has failed too often in a row.
        """
        status = self._process.poll()
        if status is not None:
            return f"the MPS daemon ended with status {status}"
        try:
            fault = self._faulty_server()
        except MpsError as error:
            self._num_failures += 1
            log.warning("MPS does not tell how it is", reason=str(error), times=self._num_failures)
            return f"{error} ({MAX_FAILURES} times in a row)" if self._num_failures >= MAX_FAILURES else None
        self._num_failures = 0
        return fault

    def stop(self) -> None:
        """Ask the daemon to end, then end it."""
        if self._process.poll() is None:
            with contextlib.suppress(MpsError):
                self.ask("quit")
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _faulty_server(self) -> str | None:
        """Return the server in state FAULT, if any; raises MpsError if there is none but a server did not answer."""
        failure: MpsError | None = None
        for server in self.ask("get_server_list").split():
            try:
                state = self.ask(f"get_server_status {server}").strip()
            except MpsError as error:
                failure = error
                continue
            if "FAULT" in state.upper():
                return f"MPS server {server} is in state {state}: a client caused a fatal GPU error"
        if failure is not None:
            raise failure
        return None

    def _start(self) -> "subprocess.Popen[bytes]":
        for directory in (self.pipe_directory, self._log_directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._log_directory / "output.log").open("ab") as output:
            # In the foreground, so that its end is seen.
            return subprocess.Popen(
                [self._program, "-f"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _await_answer(self, deadline_s: float) -> None:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(_TICK_S)
                raise MpsError(f"{CONTROL_PROGRAM} ended with status {status}: {self._last_output()}")
            try:
                self.ask("get_server_list")
            except MpsError as error:
                if time.monotonic() > deadline_s:
                    self.stop()
                    raise MpsError(f"{error}; it was started {_START_TIMEOUT_S:g} s before") from error
            else:
                return

    def _last_output(self) -> str:
        lines = (self._log_directory / "output.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _last_line(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
