"""The process in which a reward function runs: a new one, or for mathematics a fork of one with the imports done."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Final

from longshore.api.reward_kind import RewardKind
from longshore_runtime.rewards.kinds.registry import child_kind_of

_START_LIMIT_S: Final = 120.0
"""Seconds that the imports may take."""
_OWN_PREFIXES: Final = ("LONGSHORE_", "RAY_", "KUBE")
"""Prefixes of variables that do not belong to reward code.

`KUBE` also covers `KUBERNETES_` and `KUBECONFIG`.
"""


class ChildProcess(ABC):
    """A running `child`."""

    def __init__(self, requests: int, replies: int) -> None:
        """Take this end of its two pipes, as file descriptors."""
        self._requests = os.fdopen(requests, "wb", buffering=0)
        self._replies = os.fdopen(replies, "rb", buffering=0)

    @property
    def requests(self) -> int:
        """Pipe to the process; raises ValueError once it was ended, as the number may be another file's."""
        return self._requests.fileno()

    @property
    def replies(self) -> int:
        """Pipe from the process; raises ValueError like `requests`."""
        return self._replies.fileno()

    @abstractmethod
    def kill(self) -> None:
        """End the process at once, with everything that reward code has started from it, and close the pipes.

        May be called again, and from several threads.
        """

    def _close_pipes(self) -> None:
        self._requests.close()
        self._replies.close()


@contextlib.contextmanager
def _new_pipes() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the ends of a pipe of requests and one of replies: first ours, then the child's.

    The child's are closed afterwards, and ours too if the block raises.
    """
    child_requests, requests = os.pipe()
    replies, child_replies = os.pipe()
    with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
        for file in (child_requests, child_replies):
            always.callback(os.close, file)
        for file in (requests, replies):
            undo.callback(os.close, file)
        yield (requests, replies), (child_requests, child_replies)
        undo.pop_all()


def start_child(name: RewardKind) -> ChildProcess:
    """Start a process for functions of this kind; raises OSError."""
    return _TEMPLATE.fork() if child_kind_of(name).is_forked else _Spawned()


class _Spawned(ChildProcess):
    def __init__(self) -> None:
        with _new_pipes() as (ours, theirs):
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "longshore_runtime.rewards.child", *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                pass_fds=theirs,
                env=child_environment(os.environ),
                start_new_session=True,
            )
        super().__init__(*ours)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipes()


class _Forked(ChildProcess):
    """Process that is forked from the template. It runs no code of users, so nothing is started from it."""

    def __init__(self, requests: int, replies: int, handle: int) -> None:
        """Take its two pipes and its pidfd, `handle`."""
        super().__init__(requests, replies)
        self._handle = handle
        self._lock = threading.Lock()

    def kill(self) -> None:
        with self._lock:
            if self._requests.closed:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            end = select.poll()
            end.register(self._handle, select.POLLIN)
            end.poll()
            self._close_pipes()
            os.close(self._handle)


class _Template:
    """The process that is forked: started when it is first needed, and again if it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Lock for the template, because workers are threads of one process."""
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self) -> _Forked:
        """Return a new fork; raises OSError."""
        with self._lock, _new_pipes() as (ours, theirs):
            return _Forked(*ours, self._forked(theirs))

    def _forked(self, pipes: tuple[int, int]) -> int:
        """Return a pidfd of a fork that has these ends of pipes."""
        try:
            return self._ask(pipes)
        except OSError:  # Somebody has ended it, for want of memory perhaps.
            self._start()
            return self._ask(pipes)

    def _ask(self, pipes: tuple[int, int]) -> int:
        if self._control is None:
            raise ConnectionError("it has not been started")
        socket.send_fds(self._control, [b"f"], pipes)
        _, handles, _, _ = socket.recv_fds(self._control, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not handles:
            raise ConnectionError("it is gone")
        return handles[0]

    def _start(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_START_LIMIT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "longshore_runtime.rewards.child_template"],
                stdin=theirs.fileno(),
                env=child_environment(os.environ),
                start_new_session=True,
            )


_TEMPLATE = _Template()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a pod's environment that reward code sees: what the image and the pod template set.

    Variables of Longshore, Ray and Kubernetes say where the job's tokens and its API server are.
    """
    return {name: value for name, value in environment.items() if not name.startswith(_OWN_PREFIXES)}
