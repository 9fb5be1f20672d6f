"""A process with the imports of mathematics done, whose forks score. `child_process` starts it.

The imports take 0.4 s of CPU time and 40 MB, for every worker and again whenever one was cut off. Standard input is a
socket: each request brings the standard input and output of a fork, and is answered with its process id. The process
runs no code of users, and ends with the one that started it; its forks end with theirs (`child`).
"""

import contextlib
import gc
import os
import socket

from longshore_runtime.rewards import child
from longshore_runtime.rewards.child_process import PID_BYTES
from longshore_runtime.rewards.maths import answers_agree


def main() -> None:
    """Fork for every request."""
    control = socket.socket(fileno=os.dup(0))
    answers_agree("\\boxed{1}", "1")  # The first call imports more.
    gc.collect()
    gc.freeze()  # A collection in a fork would copy every page that it shares with the others.
    while True:
        _, files, _, _ = socket.recv_fds(control, 1, 2)
        if not files:
            return
        _reap()
        if (pid := os.fork()) == 0:
            control.close()
            _run(*files)
        for file in files:
            os.close(file)
        control.sendall(pid.to_bytes(PID_BYTES, "big"))


def _reap() -> None:
    """Only now: the worker that asked for a fork holds a handle of it, so that its process id may go to another."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _run(stdin: int, stdout: int) -> None:
    """Be a scoring process."""
    status = 1
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        child.main()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
