"""The host's end of a zygote: starts it, sends it runs, reads their output, and cuts off runs that do not end."""

import contextlib
import fcntl
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from longshore_runtime.sandbox.cases import AssertionCase, Ran
from longshore_runtime.sandbox.cgroup import Cgroup, own_group, parent_of_sandboxes
from longshore_runtime.sandbox.confinement import Confinement
from longshore_runtime.sandbox.layers import Layer, LayerUnavailable

_START_TIMEOUT_S: Final = 60.0
_GRACE_S: Final = 20.0
"""Seconds after the end of its time in which a run's keeper must report, or the whole zygote is killed."""
_CHUNK_BYTES: Final = 1 << 16
_NUM_OUTPUTS: Final = 3
_LONGEST_S: Final = 1e6
"""Seconds after which an interpreter ends whatever happens; each of its calls has a limit of its own."""
_ROOM: Final = 2
"""Multiple of the expected output that a run may write: an answer may be written in several ways."""
_ALL_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_IMPORT_ROOT: Final = Path(__file__).parents[2]
START: Final = (
    "import sys; path = list(sys.path); sys.path.insert(0, sys.argv[1]); "
    "from longshore_runtime.sandbox.zygote import main; main(path)"
)
ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "2",
}
"""The environment of programs: no token, no address; sets have the same order in every run."""
_names = itertools.count()


class ZygoteDied(Exception):
    """Raised when the zygote or a keeper ended without a report."""


class SandboxWorker:
    """Worker with one zygote."""

    def __init__(self, confinement: Confinement, python: str) -> None:
        """Start the zygote and wait until it is ready; raises LayerUnavailable or ZygoteDied."""
        self._limits = confinement.limits
        self._cgroup: Cgroup | None = None
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-s", "-S", "-P", "-B", "-c", START, str(_IMPORT_ROOT)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        try:
            if Layer.CGROUP in confinement.layers:
                name = f"longshore-sandbox-{os.getpid()}-{next(_names)}"
                self._cgroup = Cgroup.create(parent_of_sandboxes(own_group()), name, confinement.limits)
                self._cgroup.add(self._process.pid)
            self._greet(confinement)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Number of the zygote's process."""
        return self._process.pid

    def close(self) -> None:
        """End the zygote, with everything that it runs."""
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._cgroup is not None:
            self._cgroup.remove()

    def run(self, source: bytes, shown: bytes, is_function: bool, wall_s: float, expected_bytes: int = 0) -> Ran:
        """Make one run, from start to end; raises ZygoteDied or LayerUnavailable.

        `expected_bytes`: size of the right output, for which there is room whatever the limit is.
        """
        kills_before = self._cgroup.num_memory_kills() if self._cgroup else 0
        with contextlib.ExitStack() as ours:
            with contextlib.ExitStack() as theirs:
                control, far_end = socket.socketpair()
                ours.enter_context(control)
                theirs.enter_context(far_end)
                readers, writers = zip(*(_pipe(ours, theirs) for _ in range(_NUM_OUTPUTS)), strict=True)
                program = theirs.enter_context(_memory_file("source", source))
                given = theirs.enter_context(_memory_file("shown", shown))
                request = {"wall_s": wall_s, "is_function": is_function, "is_interpreter": False}
                self._send(request, [far_end.fileno(), program, given, *writers])
            streams = _Streams(control, readers, max(self._limits.output_bytes, _ROOM * expected_bytes))
            report = streams.read(time.monotonic() + wall_s + _GRACE_S)
        return self._ran(report, streams, kills_before)

    def start_interpreter(self) -> tuple[socket.socket, socket.socket, int]:
        """Start a program for `interpreter`; raises ZygoteDied.

        Any fork of this process may do so: requests do not mix, and nothing is received by this socket.

        Returns:
            Control of its keeper, channel of its calls, and the descriptor of its output.
        """
        with contextlib.ExitStack() as undo:
            with contextlib.ExitStack() as theirs:
                control, far_control = socket.socketpair()
                channel, far_channel = socket.socketpair()
                for ours, end in ((control, far_control), (channel, far_channel)):
                    undo.enter_context(ours)
                    theirs.enter_context(end)
                output, writer = _pipe(undo, theirs)
                nothing = theirs.enter_context(_memory_file("source", b""))
                request = {"wall_s": _LONGEST_S, "is_function": False, "is_interpreter": True}
                descriptors = [far_control.fileno(), nothing, far_channel.fileno(), writer, writer, writer]
                self._send(request, descriptors)
            undo.pop_all()
        return control, channel, output

    def judge(self, case: AssertionCase, claim: bytes, wall_s: float) -> str | None:
        """Return why a claim is wrong, as `AssertionCase.difference` does, but in a process that can be ended.

        Raises:
            TimeoutError: it takes longer than `wall_s`.
            ZygoteDied: the process ended for another reason.
        """
        started_s = time.monotonic()
        with contextlib.ExitStack() as ours:
            with contextlib.ExitStack() as theirs:
                control, far_end = socket.socketpair()
                ours.enter_context(control)
                theirs.enter_context(far_end)
                test = theirs.enter_context(_memory_file("test", case.test.text.encode()))
                claimed = theirs.enter_context(_memory_file("claim", claim))
                self._send({"wall_s": wall_s, "judged_entry": case.entry}, [far_end.fileno(), test, claimed])
            control.settimeout(wall_s + _GRACE_S)
            try:
                answer = b"".join(iter(lambda: control.recv(_CHUNK_BYTES), b""))
            except TimeoutError as error:
                raise ZygoteDied("a judge does not end") from error
        if answer:
            difference: str | None = json.loads(answer)
            return difference
        if time.monotonic() - started_s < wall_s:
            raise ZygoteDied("a judge ended without an answer")
        raise TimeoutError(f"returned a value that could not be judged within {wall_s:.3g} s")

    def _ran(self, report: bytes, streams: "_Streams", kills_before: int) -> Ran:
        stdout, stderr, claim = streams.contents
        if not report:
            raise ZygoteDied("a keeper ended without a report")
        result = json.loads(report)
        if "broken" in result:
            raise LayerUnavailable(result["broken"])
        ended, used_s = result["exit_status"], result["cpu_s"]
        if self._cgroup is not None:
            result["memory_exhausted"] = self._cgroup.num_memory_kills() > kills_before
        return Ran(
            **result,
            stdout=stdout,
            stderr=stderr,
            claim=claim,
            output_exhausted=streams.is_over,
            cpu_exhausted=ended == -signal.SIGXCPU or (ended == -signal.SIGKILL and used_s >= self._limits.cpu_s),
        )

    def _greet(self, confinement: Confinement) -> None:
        options = {
            "layers": sorted(confinement.layers),
            "limits": asdict(confinement.limits),
            "user": confinement.user,
            "import_paths": list(confinement.import_paths),
            "is_shared": confinement.is_shared,
        }
        try:
            self._socket.send(json.dumps(options).encode())
            self._socket.settimeout(_START_TIMEOUT_S)
            answer = self._socket.recv(_CHUNK_BYTES)
        except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
            raise ZygoteDied("the sandbox's interpreter does not start") from error
        if not answer:
            raise ZygoteDied("the sandbox's interpreter does not start")
        result = json.loads(answer)
        if "broken" in result:
            raise LayerUnavailable(result["broken"])

    def _send(self, request: dict[str, Any], descriptors: list[int]) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
            raise ZygoteDied("the sandbox's interpreter has ended") from error


class _Streams:
    """Output of one run, up to a limit, until its keeper reports."""

    def __init__(self, control: socket.socket, readers: Sequence[int], limit_bytes: int) -> None:
        self._control = control
        self._readers = readers
        self._limit_bytes = limit_bytes
        self._taken: dict[int, bytearray] = {reader: bytearray() for reader in readers}

    @property
    def is_over(self) -> bool:
        """Whether a stream has more than it may."""
        return any(len(taken) > self._limit_bytes for taken in self._taken.values())

    @property
    def contents(self) -> list[bytes]:
        """Standard output, standard error, claim."""
        return [bytes(self._taken[reader]) for reader in self._readers]

    def read(self, deadline_s: float) -> bytes:
        """Read all until the report, which is returned; empty if the keeper died or is late.

        After a report, nothing of the run is left.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            for reader in self._readers:
                selector.register(reader, selectors.EVENT_READ)
            report = self._read_until_report(selector, deadline_s)
        for reader in self._readers:
            os.set_blocking(reader, False)
            while not self.is_over and self._take(reader):
                continue  # What was written before the end.
        return report

    def _read_until_report(self, selector: selectors.BaseSelector, deadline_s: float) -> bytes:
        while events := selector.select(max(0.0, deadline_s - time.monotonic())):
            ready = [key.fileobj for key, _ in events]
            if self._control in ready:
                return self._control.recv(_CHUNK_BYTES)
            for reader in ready:
                assert isinstance(reader, int)
                if not self._take(reader):
                    selector.unregister(reader)
            if self.is_over:
                # Half closed: the keeper ends the program and still reports.
                self._control.shutdown(socket.SHUT_WR)
                for reader in self._readers:
                    with contextlib.suppress(KeyError):
                        selector.unregister(reader)
        return b""

    def _take(self, reader: int) -> int:
        try:
            chunk = os.read(reader, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self._taken[reader] += chunk
        return len(chunk)


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """Return a read end, which closes with `ours`, and a write end, which closes with `theirs`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


@contextlib.contextmanager
def _memory_file(name: str, content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ALL_SEALS)  # No store of memory for anyone who gets it.
        yield descriptor
    finally:
        os.close(descriptor)


def default_python() -> str:
    """Return the interpreter behind this one's environment."""
    return os.path.realpath(sys.executable)
