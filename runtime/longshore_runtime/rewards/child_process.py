"""The process in which a reward function runs: a new one, or for mathematics a fork of one with the imports done."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from longshore.api.reward_kind import RewardKind
from longshore_runtime.rewards.fork_server import Fork, ForkServer, new_pipes
from longshore_runtime.rewards.kinds.registry import child_kind_of

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


def start_child(name: RewardKind) -> ChildProcess:
    """Start a process for functions of this kind; raises OSError."""
    return _TEMPLATE.fork() if child_kind_of(name).is_forked else _Spawned()


class _Spawned(ChildProcess):
    def __init__(self) -> None:
        with new_pipes() as (ours, theirs):
            pipes = (theirs.requests, theirs.replies)
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "longshore_runtime.rewards.child", *map(str, pipes)],
                stdin=subprocess.DEVNULL,
                pass_fds=pipes,
                env=child_environment(os.environ),
                start_new_session=True,
            )
        os.close(ours.end)  # Only a template writes to it.
        super().__init__(ours.requests, ours.replies)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipes()


class _Forked(ChildProcess):
    """Process that is forked from the template."""

    def __init__(self, fork: Fork) -> None:
        """Take the fork, with its pipes."""
        super().__init__(fork.pipes.requests, fork.pipes.replies)
        self._fork = fork
        self._lock = threading.Lock()

    def kill(self) -> None:
        with self._lock:
            if self._requests.closed:
                return
            self._fork.kill()
            self._fork.wait()
            self._close_pipes()
            self._fork.close()


class _Template:
    """The process that is forked: started when it is first needed, and again if it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Lock for the template, because workers are threads of one process."""
        self._server: ForkServer | None = None

    def fork(self) -> _Forked:
        """Return a new fork; raises OSError."""
        with self._lock:
            return _Forked(self._new_fork())

    def _new_fork(self) -> Fork:
        if self._server is not None:
            try:
                return self._server.receive(self._server.request())
            except OSError:  # Somebody has ended it, for want of memory perhaps.
                self._server.kill()
        self._server = ForkServer("longshore_runtime.rewards.child_template", [], child_environment(os.environ))
        self._server.receive_ready()
        return self._server.receive(self._server.request())


_TEMPLATE = _Template()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a pod's environment that reward code sees: what the image and the pod template set.

    Variables of Longshore, Ray and Kubernetes say where the job's tokens and its API server are.
    """
    return {name: value for name, value in environment.items() if not name.startswith(_OWN_PREFIXES)}
