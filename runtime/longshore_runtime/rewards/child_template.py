"""A process with the imports of mathematics done, whose forks score. `child_process` starts it.

The imports take 0.4 s of CPU time and 40 MB, for every worker and again whenever one was cut off. Standard input is a
socket: each request brings the two pipes of a fork (`child`), and is answered with a pidfd of it. The process
runs no code of users, and ends with the one that started it; its forks end with theirs (`child`).
"""

import contextlib
import gc
import os
import signal
import socket
from types import FrameType

from longshore_runtime.rewards import child
from longshore_runtime.rewards.maths.agreement import answers_agree


def main() -> None:
    """Fork for every request."""
    control = socket.socket(fileno=os.dup(0))
    answers_agree("\\boxed{1}", "1")  # The first call imports more.
    gc.collect()
    gc.freeze()  # A collection in a fork would copy every page that it shares with the others.
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 2)
        if not files:
            return
        handle = _fork(control, *files)
        for file in files:
            os.close(file)
        socket.send_fds(control, [b"h"], [handle])
        os.close(handle)


def _fork(control: socket.socket, requests: int, replies: int) -> int:
    """Return a pidfd of a new scoring process."""
    # A fork that ends at once is reaped only after this: its process id may then go to another process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    if (pid := os.fork()) == 0:
        control.close()
        _run(requests, replies)
    handle = os.pidfd_open(pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    return handle


def _reap(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _run(requests: int, replies: int) -> None:
    """Run as a scoring process, in a fork."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.setsid()
        first, last = sorted((requests, replies))
        os.closerange(3, first)
        os.closerange(first + 1, last)
        os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        child.main(requests, replies)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
