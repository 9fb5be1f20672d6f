"""Start a process whose forks do the work (`fork_template`), and ask it for them."""

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

START_LIMIT_S: Final = 120.0
"""Seconds that the imports may take."""
_ANSWER_BYTES: Final = 1 << 16


class ImportsFailed(Exception):
    """Raised when the process reports that its imports have failed; the message is what it reports."""


class ForkRefused(OSError):
    """Raised when the template cannot fork, such as for a limit on processes."""


class Ends(NamedTuple):
    """Ends of three pipes: requests to a fork, its replies, and its exit code after its end."""

    requests: int
    replies: int
    end: int


class Fork(NamedTuple):
    """A fork, as its parent holds it."""

    pid: int
    handle: int
    """Pidfd of the process."""
    pipes: Ends

    def kill(self) -> None:
        """Kill the process with its group; the template kills what has left the group."""
        with contextlib.suppress(ProcessLookupError):
            if not self.wait(0):  # So the number is its own. The group of one that has ended is gone, or soon will be.
                os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)  # It may not have made its group yet.

    def close(self) -> None:
        """Close the pidfd, and the pipe that tells the end; the other two pipes belong to whoever uses them."""
        os.close(self.pipes.end)
        os.close(self.handle)

    def wait(self, limit_ms: int | None = None) -> bool:
        """Wait until the process has ended, and return whether it has."""
        end = select.poll()
        end.register(self.handle, select.POLLIN)
        return bool(end.poll(limit_ms))


class ForkServer:
    """A running template. Its methods block, unless `control` can be read before a `receive` method is called.

    Forks are requested one after the other; whoever shares a template holds a lock from a request to its answer.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the module as a program. It gets the socket's number before the arguments; raises OSError."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Socket on which the template answers."""
        self.control.settimeout(START_LIMIT_S)
        self.is_ready = False
        """Whether the imports are done."""
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )

    def receive_ready(self) -> None:
        """Receive the word that the imports are done; raises ImportsFailed, and OSError if the process has ended."""
        if not (said := self.control.recv(_ANSWER_BYTES)):
            raise ConnectionError("the process has ended")
        if said != b"ready":
            raise ImportsFailed(said.decode())
        self.is_ready = True

    def request(self) -> Ends:
        """Request a fork and return this end of its pipes; raises OSError."""
        with new_pipes() as (ours, theirs):
            socket.send_fds(self.control, [b"f"], theirs)
            return ours

    def receive(self, pipes: Ends) -> Fork:
        """Receive the fork that was requested with these pipes, which are closed if it raises OSError."""
        try:
            said, handles, _, _ = socket.recv_fds(self.control, _ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not said:
                raise ConnectionError("the process has ended")
            if not handles:
                raise ForkRefused(said.decode())
        except OSError:
            for pipe in pipes:
                os.close(pipe)
            raise
        return Fork(int(said), handles[0], pipes)

    def hang_up(self) -> None:
        """Let the template end, after everything that it has forked. Whoever waits for it learns that it is gone."""
        with contextlib.suppress(OSError):  # It is gone.
            self.control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the template and its process group at once. Its forks go on until their pipes are closed."""
        self.control.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def allow_many_files() -> None:
    """Let this process and those that it starts open as many files as they may; a shell's default is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def new_pipes() -> Iterator[tuple[Ends, Ends]]:
    """Yield the ends of new pipes: first ours, then those of the other process.

    The latter are closed afterwards, and ours too if the block raises.
    """
    with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:

        def ends(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
            read, write = os.pipe()
            ours.callback(os.close, read)
            theirs.callback(os.close, write)
            return read, write

        child_requests, requests = ends(always, undo)
        replies, child_replies = ends(undo, always)
        end, child_end = ends(undo, always)
        yield Ends(requests, replies, end), Ends(child_requests, child_replies, child_end)
        undo.pop_all()
