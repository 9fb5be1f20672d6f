"""Keeps one program: makes its sandbox, starts it, times it, and ends everything that it started.

The keeper is forked for one run and stays outside the sandbox. What it tells the host about the program's end comes
from the kernel, never from the program.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from longshore_runtime.sandbox import linux, namespaces, program
from longshore_runtime.sandbox.confinement import Ground, confine
from longshore_runtime.sandbox.layers import Layer, LayerUnavailable

_READY: Final = b"ready"
_SWEEP_TIMEOUT_S: Final = 5.0
_TELL: Final = program.CLAIM + 1


@dataclass(frozen=True)
class RunRequest:
    """One run, with the descriptors that the host made for it."""

    wall_s: float
    is_function: bool
    control: socket.socket
    """Its end asks to stop; one JSON line on it tells how the program ended."""
    source: int
    shown: int
    stdout: int
    stderr: int
    claim: int


def keep(request: RunRequest, ground: Ground) -> NoReturn:
    """Whole life of a keeper."""
    linux.die_with_parent(signal.SIGKILL)
    linux.hide_process()
    os.setsid()
    try:
        report = _keep(request, ground)
    except (OSError, LayerUnavailable) as error:
        report = {"broken": str(error)}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        request.control.sendall(json.dumps(report).encode())
    os._exit(0)


def _keep(request: RunRequest, ground: Ground) -> dict[str, Any]:
    reaper = None
    if Layer.NAMESPACES in ground.confinement.layers:
        namespaces.enter_own(ground.confinement.limits.file_bytes, ground.confinement.owner)
        reaper = _fork_reaper()
    else:
        linux.adopt_orphans()
    child, ready = _fork_program(request, ground)
    with os.fdopen(ready, "rb") as pipe:
        said = pipe.read()
    started_s = time.monotonic()
    timed_out = False
    if said == _READY:
        timed_out = _await_end(child, request, started_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    wall_s = time.monotonic() - started_s
    _end_descendants(reaper)
    if said != _READY:
        return {"broken": said.decode() or "the sandbox could not be made"}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "exit_status": os.waitstatus_to_exitcode(status),
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "timed_out": timed_out,
    }


def _fork_reaper() -> int:
    """First process of the new namespace: when it is killed, the kernel kills all others there."""
    child = os.fork()
    if child == 0:
        os.closerange(0, 1 << 10)
        namespaces.reap_for_ever()
    return child


def _fork_program(request: RunRequest, ground: Ground) -> tuple[int, int]:
    ready, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, ready
    return _become_program(request, ground, tell)


def _become_program(request: RunRequest, ground: Ground, tell: int) -> NoReturn:
    try:
        source = os.pread(request.source, os.fstat(request.source).st_size, 0)
        tell, ruleset = _take_descriptors(request, tell, ground.ruleset)
        os.setsid()
        confine(ground, ruleset)
    except (OSError, LayerUnavailable) as error:
        os.write(tell, str(error).encode())
        os._exit(1)
    os.write(tell, _READY)
    os.close(tell)
    program.run(source, request.is_function)


def _take_descriptors(request: RunRequest, tell: int, ruleset: int | None) -> tuple[int, int | None]:
    """Make 0, 1, 2 and the claim those of the program, close every other; returns where the two are then."""
    kept = [request.shown, request.stdout, request.stderr, request.claim, tell, *([] if ruleset is None else [ruleset])]
    # First out of the way of the low numbers, that none is closed before it was copied.
    high = [_move_up(descriptor, len(kept)) for descriptor in kept]
    for low, descriptor in enumerate(high):
        os.dup2(descriptor, low, inheritable=low < program.CLAIM)
    os.closerange(len(kept), 1 << 10)
    if not request.is_function:
        os.close(program.CLAIM)
    return _TELL, None if ruleset is None else _TELL + 1


def _move_up(descriptor: int, lowest: int) -> int:
    copy = os.dup(descriptor)
    return copy if copy >= lowest else _move_up(copy, lowest)


def _await_end(child: int, request: RunRequest, started_s: float) -> bool:
    """Wait until the program ends, its time is up (True) or the host hangs up."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(request.control, select.POLLIN)
    left_s = max(0.0, request.wall_s - (time.monotonic() - started_s))
    events = poll.poll(left_s * 1e3)
    os.close(ended)
    return not events


def _end_descendants(reaper: int | None) -> None:
    """Kill whatever the program left running, and wait until it is gone."""
    if reaper is not None:
        os.kill(reaper, signal.SIGKILL)
        os.waitpid(reaper, 0)
        return
    deadline_s = time.monotonic() + _SWEEP_TIMEOUT_S
    while _has_children():
        if time.monotonic() > deadline_s:
            raise OSError(f"processes of the program could not be ended within {_SWEEP_TIMEOUT_S:g} s")
        _strike()


def _has_children() -> bool:
    """Reap what has ended; whether anything is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _strike() -> None:
    # Orphans come to this process, so ending its children again and again ends the whole tree. A fork bomb is first
    # deprived of forks, or it would outrun the loop.
    for child in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(child, resource.RLIMIT_NPROC, (0, 0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}
