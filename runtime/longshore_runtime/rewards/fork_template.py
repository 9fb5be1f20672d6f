"""A process with imports done, whose forks do the work, as that process sees it. `fork_server` starts it.

    parent ── socket: pipes of a fork ──► template ── fork ──► `run`
           ◄── process id and pidfd ─────    │
           ◄── pipe: exit code ──────────────┘ when the fork has ended, and its process group with it

A fork leads a process group of its own, and whatever it starts ends with it. A process that leaves the group, such as
a daemon, is adopted by the fork, and after its end by the template, which kills what it adopts.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from longshore_runtime.sandbox.linux import adopt_orphans

_NUM_PIPES: Final = 3
SWEEP_S: Final = 1.0
"""Seconds between two searches for adopted processes: each reads an entry of every process that there is."""

Run = Callable[[int, int], None]
"""Work of a fork, which gets its pipes of requests and of replies."""


class _Fork(NamedTuple):
    pid: int
    handle: int
    """Pidfd of the process, which can be read once it has ended."""
    end: int
    """Pipe for its exit code."""


def serve(control: socket.socket, run: Run) -> None:
    """Fork for every request until the parent closes the socket, then end what was forked."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # As Python has it; a module of the user may have changed that.
    control.sendall(b"ready")
    adopt_orphans()
    gc.collect()
    gc.freeze()  # A collection in a fork would copy every page that it shares with the others.
    _Template(control, run).serve()


class _Template:
    def __init__(self, control: socket.socket, run: Run) -> None:
        self._control = control
        self._run = run
        self._forks: dict[int, _Fork] = {}
        """Forks that have not been reaped, by process id."""
        self._kept = _children()
        """Processes that the imports have started, which all forks may use."""
        self._sweep_at_s: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select(self._until_sweep_s()):
                if isinstance(key.data, _Fork):
                    self._reap(key.data)
                elif not self._answer():
                    self._end_all()
                    return
            if self._until_sweep_s() == 0:
                self._sweep()

    def _until_sweep_s(self) -> float | None:
        return None if self._sweep_at_s is None else max(0.0, self._sweep_at_s - time.monotonic())

    def _answer(self) -> bool:
        """Fork; returns whether the parent is there."""
        data, files, _, _ = socket.recv_fds(self._control, 1, _NUM_PIPES, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        try:
            if len(files) < _NUM_PIPES:
                raise OSError("too many open files")
            fork = self._fork(*files)
        except OSError as error:  # Such as a limit on processes. The parent misses the pidfd.
            self._control.sendall(str(error).encode())
        else:
            socket.send_fds(self._control, [b"%d" % fork.pid], [fork.handle])
            files.remove(fork.end)
        for file in files:
            os.close(file)
        return True

    def _fork(self, requests: int, replies: int, end: int) -> _Fork:
        if (pid := os.fork()) == 0:
            self._become_fork(requests, replies, end)
        try:
            fork = _Fork(pid, os.pidfd_open(pid), end)  # Nobody else reaps it, so the number is its own.
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._forks[pid] = fork
        self._selector.register(fork.handle, selectors.EVENT_READ, fork)
        return fork

    def _become_fork(self, requests: int, replies: int, end: int) -> None:
        """Do the work of a fork; does not return."""
        status = 1
        try:
            os.setsid()
            adopt_orphans()
            self._selector.close()
            self._control.close()
            os.close(end)
            for other in self._forks.values():
                os.close(other.handle)
                os.close(other.end)
            self._run(requests, replies)
            status = 0
        except BaseException:  # noqa: BLE001 - nobody else would print it
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self, fork: _Fork) -> None:
        """Kill the group of a fork that has ended, and tell its exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(fork.pid, signal.SIGKILL)  # Its leader still has the number.
        _, status = os.waitpid(fork.pid, 0)
        self._selector.unregister(fork.handle)
        del self._forks[fork.pid]
        with contextlib.suppress(BrokenPipeError):
            os.write(fork.end, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(fork.handle)
        os.close(fork.end)
        self._sweep_at_s = self._sweep_at_s or time.monotonic() + SWEEP_S

    def _sweep(self) -> None:
        """Kill the processes that were adopted, and those that are adopted for that."""
        self._sweep_at_s = None
        while adopted := _children() - self._forks.keys() - self._kept:
            for pid in adopted:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _end_all(self) -> None:
        for fork in list(self._forks.values()):
            os.kill(fork.pid, signal.SIGKILL)
            self._reap(fork)
        self._sweep()
        self._kept = set()  # Last, since this process may end with one of them.
        self._sweep()


def _children() -> set[int]:
    """Return the children of this process, also those that have ended."""
    own, found = os.getpid(), set()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, OSError):
            pid = int(process.name)
            if int((process / "stat").read_bytes().rpartition(b")")[2].split()[1]) == own:
                found.add(pid)
    return found
