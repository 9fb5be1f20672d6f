"""The two pipes of a process that runs code of users, as that process holds them.

    parent ── pipe of requests ──► main thread: reads a line, calls code of users, writes a line
           ◄── pipe of replies ───
           closes its end ───────► thread `_end_with_parent`: kills the process group

Code of users may start other processes. Only this process holds the two pipes: another one would take requests away,
or answer the next request. Standard input is empty, and what is printed goes to standard error.
"""

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

Say = Callable[[bytes], None]
"""Function that writes one line, which has its line break."""


def take_pipes(requests: int, replies: int) -> tuple[BinaryIO, Say]:
    """Return the lines of the parent and the way to answer. Both arguments are file descriptors.

    From now on the process ends when the parent closes its end of the pipe of requests.
    """
    _keep_from_other_processes(requests, replies)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # The process ends by being killed, and would lose what it holds.
    threading.Thread(target=_end_with_parent, args=(requests,), daemon=True).start()
    return os.fdopen(requests, "rb"), _writer(replies)


def _keep_from_other_processes(*pipes: int) -> None:
    """Let no process that is started from this one have the pipes: neither after `exec` nor after `fork`."""
    for pipe in pipes:
        os.set_inheritable(pipe, False)
    nothing = os.open(os.devnull, os.O_RDWR)

    def replace_pipes() -> None:
        for pipe in pipes:  # Closed ones would be numbers that another file may get.
            os.dup2(nothing, pipe, inheritable=False)

    os.register_at_fork(after_in_child=replace_pipes)


def _end_with_parent(requests: int) -> None:
    """Wait until the parent has closed its end of the pipe, then kill everything that was started here.

    This also ends a call that is not finished: nobody would be left to cut it off.
    """
    lifeline = select.poll()
    lifeline.register(requests, 0)  # Its end is reported in any case.
    lifeline.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


def _writer(replies: int) -> Say:
    owner, file = os.getpid(), os.fdopen(replies, "wb")

    def say(line: bytes) -> None:
        if os.getpid() != owner:
            os._exit(0)  # The function has forked and returns in both processes: this one is not the one that answers.
        file.write(line)
        file.flush()

    return say
