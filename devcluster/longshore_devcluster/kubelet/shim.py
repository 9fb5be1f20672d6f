"""Keeps one container instance: starts its main process, logs it, and lets nothing of it live on.

Run as a program of its own (`python -I -S shim.py`), one per container instance and per exec. It is the subreaper of
everything that the container starts, so daemons, new sessions and new process groups stay its descendants; when the
main process ends, or the kubelet goes away, it kills every one of them. Only the standard library, loaded lean.

Standard input: one JSON line with the specification (`Spec` in `containers.py`), then JSON lines
`{"signal": N}` (to the main process) or `{"kill": true}` (to everything); end of file means kill everything.
Standard output: JSON lines `{"pid": N, "keeper": N}` (keeper: this process) or `{"error": text}`, `{"logged": true}`
after new log lines, and at the end `{"exit_code": N}` where death by signal N is 128 + N.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # What the types need is not loaded.
    from collections.abc import Callable
    from typing import NoReturn

    Execute = Callable[[dict[str, object]], NoReturn]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK_BYTES = 16384
_LOG_SIGNAL_INTERVAL_S = 0.05


class Log:
    """The log file in the layout of the container runtime interface: time, stream, F or P (partial), text."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115, PTH123
        self._rest = {"stdout": b"", "stderr": b""}

    def write(self, stream: str, data: bytes) -> None:
        """Append output, line by line; a line that has not ended waits for its end."""
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        self._emit(stream, [piece for line in lines for piece in pieces(line)])
        while len(rest) >= _CHUNK_BYTES:
            self._emit(stream, [(b"P", rest[:_CHUNK_BYTES])])
            rest = rest[_CHUNK_BYTES:]
        self._rest[stream] = rest

    def finish(self) -> None:
        """Write what never got its newline."""
        for stream, rest in self._rest.items():
            self._emit(stream, [(b"P", rest)] if rest else [])
            self._rest[stream] = b""

    def _emit(self, stream: str, lines: list[tuple[bytes, bytes]]) -> None:
        if not lines:
            return
        now_ns = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ns // 10**9))
        prefix = f"{stamp}.{now_ns % 10**9:09d}Z {stream} ".encode()
        self._file.write(b"".join(prefix + tag + b" " + line + b"\n" for tag, line in lines))


def pieces(line: bytes) -> list[tuple[bytes, bytes]]:
    """Return a line cut to a bounded length: partial pieces and the full end."""
    starts = range(0, max(len(line), 1), _CHUNK_BYTES)
    return [
        (b"P" if start + _CHUNK_BYTES < len(line) else b"F", line[start : start + _CHUNK_BYTES]) for start in starts
    ]


def descendants(root: int, tree: list[tuple[int, int, int]]) -> list[int]:
    """Return the process ids of every descendant of a process, as of the moment when `tree` was read."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in tree:
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def processes() -> list[tuple[int, int, int]]:
    """Return (process id, parent's id, resident pages) of every process that is not a zombie."""
    found = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                    fields = file.read().rsplit(b")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] not in (b"Z", b"X"):
                found.append((int(entry), int(fields[1]), int(fields[21])))
    return found


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may have gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Shim:
    """The loop of one container instance."""

    def __init__(self, spec: dict[str, object], execute: "Execute", commands: bytes = b"") -> None:
        self._spec = spec
        self._execute = execute
        self._main = 0
        self._status: int | None = None
        self._streams: dict[int, str] = {}
        self._log = Log(str(spec["log"])) if spec.get("log") else None
        self._signal_due = False
        self._signalled_s = 0.0
        self._commands = commands

    def run(self) -> None:
        """Start, serve until the main process has ended, then end everything else and report."""
        child_end, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        os.set_blocking(child_end, False)
        signal.set_wakeup_fd(wake_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        error = self._start()
        if error:
            report({"error": error})
            return
        report({"pid": self._main, "keeper": os.getpid()})
        self._obey(b"")
        while self._status is None:
            ready, _, _ = select.select([0, child_end, *self._streams], [], [], self._timeout_s())
            if child_end in ready:
                os.read(child_end, 512)
                self._reap()
            if 0 in ready and self._status is None:
                self._listen()
            for fd in list(self._streams):
                if fd in ready:
                    self._copy(fd)
            self._tell_logged()
        self._kill_rest()
        self._drain()
        report({"exit_code": os.waitstatus_to_exitcode(self._status)})

    def _start(self) -> str:
        stdio = self._spec.get("stdio")
        pipes: list[tuple[int, int]] = []
        if isinstance(stdio, list):
            child_fds = [int(fd) for fd in stdio]
        else:
            pipes = [os.pipe(), os.pipe()]
            child_fds = [os.open(os.devnull, os.O_RDONLY), pipes[0][1], pipes[1][1]]
        failed_read, failed_write = os.pipe()
        self._main = os.fork()
        if self._main == 0:
            run_child(self._spec, child_fds, failed_write, self._execute)
        for fd in {failed_write, *child_fds}:
            os.close(fd)
        with os.fdopen(failed_read, "rb") as file:
            error = file.read().decode()
        if error:
            os.waitpid(self._main, 0)
            return error
        for (read_end, _), name in zip(pipes, ("stdout", "stderr"), strict=False):
            os.set_blocking(read_end, False)
            self._streams[read_end] = name
        return ""

    def _timeout_s(self) -> float | None:
        return _LOG_SIGNAL_INTERVAL_S if self._signal_due else None

    def _reap(self) -> bool:
        """Collect children that have ended; false when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._ended(pid, status)

    def _ended(self, pid: int, status: int) -> None:
        if pid == self._main:
            self._status = status

    def _listen(self) -> None:
        try:
            data = os.read(0, 65536)
        except ConnectionResetError:
            data = b""
        if data:
            self._obey(data)
        else:
            self._kill_rest()

    def _obey(self, data: bytes) -> None:
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command.get("kill"):
                self._kill_rest()
                return
            send_signal(self._main, int(command["signal"]))

    def _kill_rest(self) -> None:
        # Being subreaper, we are or become the parent of all that is left: no child means nothing is left.
        while self._reap():
            for pid in descendants(os.getpid(), processes()):
                send_signal(pid, signal.SIGKILL)
            self._ended(*os.waitpid(-1, 0))

    def _copy(self, fd: int) -> bool:
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        if not data:
            os.close(fd)
            del self._streams[fd]
            return False
        assert self._log is not None
        self._log.write(self._streams[fd], data)
        self._signal_due = True
        return True

    def _drain(self) -> None:
        for fd in list(self._streams):
            while self._copy(fd):
                pass
        if self._log is not None:
            self._log.finish()

    def _tell_logged(self) -> None:
        now_s = time.monotonic()
        if self._signal_due and now_s - self._signalled_s >= _LOG_SIGNAL_INTERVAL_S:
            self._signal_due, self._signalled_s = False, now_s
            report({"logged": True})


def run_child(spec: dict[str, object], stdio: list[int], failed: int, execute: "Execute") -> None:
    """Become the main process of the container; only on failure does this return, through os._exit."""
    try:
        failed = enter(spec, stdio, failed)
        execute(spec)
    except FileNotFoundError:
        os.write(failed, f'exec: "{spec["argv"][0]}": executable file not found in $PATH'.encode())  # type: ignore[index]
        os._exit(127)
    except OSError as error:
        os.write(failed, f"starting the process: {error}".encode())
        os._exit(127)


def enter(spec: dict[str, object], stdio: list[int], failed: int) -> int:
    """Give this process the session, the signals, the files and the directory of the container's main process.

    Returns the new number of `failed`, which `exec` closes.
    """
    os.setsid()
    libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # First out of the way of 0 to 2, then into their places.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in stdio]
    failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, 10)
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, failed)
    os.closerange(failed + 1, limit)
    os.chdir(str(spec["cwd"]))
    return failed


def execute(spec: dict[str, object]) -> "NoReturn":
    """Run the container's program in place of this one."""
    argv, env = spec["argv"], spec["env"]
    assert isinstance(argv, list) and isinstance(env, dict)
    os.execvpe(argv[0], argv, env)


def libc() -> ctypes.CDLL:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def report(event: dict[str, object]) -> None:
    """Tell the kubelet; when it has gone there is nobody to tell."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        os.write(1, json.dumps(event).encode() + b"\n")


def main(execute: "Execute" = execute) -> None:
    """Keep the container that standard input describes."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    read = b""
    while b"\n" not in read:
        data = os.read(0, 65536)
        if not data:
            sys.exit(1)
        read += data
    first, commands = read.split(b"\n", 1)
    Shim(json.loads(first), execute, commands).run()


if __name__ == "__main__":
    main()
