"""Keeps one program: makes its sandbox, starts it, times and measures it, and ends everything that it started.

The keeper is forked for one run and stays outside the sandbox. What it tells the host about the program's end comes
from the kernel, never from the program.
"""

import contextlib
import json
import math
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NoReturn

from longshore_runtime.sandbox import interpreter_program, linux, namespaces, program
from longshore_runtime.sandbox.confinement import Ground, confine
from longshore_runtime.sandbox.layers import Layer, LayerUnavailable
from longshore_runtime.sandbox.supervisor import Supervisor
from longshore_runtime.sandbox.usage import ProcessTree

_READY: Final = b"ready "
"""Message of a program that is ready, before its monotonic time: the keeper may come to read it late."""
PAUSE: Final = b"p"
"""Message of the host: stop all processes of the program until RESUME."""
RESUME: Final = b"r"
_SWEEP_TIMEOUT_S: Final = 5.0
_LOOK_INTERVAL_S: Final = 0.01
"""Seconds between two checks of a program's processes, in which they can exceed a limit."""
_PAUSED_LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two checks of a program that is stopped: one of its processes may have been missed."""
_NUM_SPARE: Final = 2
_ALL_CHILDREN: Final = 0x4000_0000
"""Flag __WALL: wait also for children that a program made with a signal of its own for their end."""
_MESSAGE_BYTES: Final = 1 << 12
_NUM_DESCRIPTORS: Final = 2
_WRITER: Final = program.CLAIM + 1


@dataclass(frozen=True)
class RunRequest:
    """Request for one run, with the descriptors that the host made for it."""

    wall_s: float
    is_function: bool
    is_interpreter: bool
    control: socket.socket
    """Socket whose closing requests the end; one JSON line on it reports how the program ended."""
    source: int
    shown: int
    stdout: int
    stderr: int
    claim: int


class _EndReason(Enum):
    """Reason why the keeper no longer waits for a program."""

    BY_ITSELF = auto()
    """The program ended by itself, or the host hung up."""
    TIME = auto()
    MEMORY = auto()
    PROCESSES = auto()


def keep(request: RunRequest, ground: Ground) -> NoReturn:
    """Run a keeper from start to end."""
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
    tree = ProcessTree()
    if Layer.NAMESPACES in ground.confinement.layers:
        namespaces.enter_own(ground.confinement.limits.file_bytes, ground.confinement.owner)
        reaper = _fork_reaper()
    else:
        linux.adopt_orphans()
    child, ready = _fork_program(request, ground)
    with ready:
        readiness, descriptors, _, _ = socket.recv_fds(ready, _MESSAGE_BYTES, _NUM_DESCRIPTORS)
    supervisor = _supervisor(ground, descriptors)
    is_ready = readiness.startswith(_READY)
    started_s = float(readiness.removeprefix(_READY)) if is_ready else time.monotonic()
    apart = set() if reaper is None else {reaper}
    end = _await_end(child, request, ground, tree, apart, supervisor, started_s) if is_ready else _EndReason.BY_ITSELF
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    wall_s = time.monotonic() - started_s
    _end_descendants(reaper, tree)
    if not is_ready:
        return {"broken": readiness.decode() or "the sandbox could not be made"}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "exit_status": os.waitstatus_to_exitcode(status),
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "timed_out": end is _EndReason.TIME,
        "memory_exhausted": end is _EndReason.MEMORY,
        "processes_exhausted": end is _EndReason.PROCESSES,
    }


def _fork_reaper() -> int:
    """Fork the first process of the new namespace: when it is killed, the kernel kills all others there."""
    child = os.fork()
    if child == 0:
        os.closerange(0, 1 << 10)
        namespaces.reap_for_ever()
    return child


def _fork_program(request: RunRequest, ground: Ground) -> tuple[int, socket.socket]:
    ready, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        return child, ready
    return _become_program(request, ground, theirs.detach())


def _become_program(request: RunRequest, ground: Ground, writer: int) -> NoReturn:
    try:
        source = os.pread(request.source, os.fstat(request.source).st_size, 0)
        writer, ruleset = _take_descriptors(request, writer, ground.ruleset)
        os.setsid()
        descriptors = confine(ground, ruleset)
    except (OSError, LayerUnavailable) as error:
        os.write(writer, str(error).encode())
        os._exit(1)
    with socket.socket(fileno=writer) as ready:
        socket.send_fds(ready, [_READY + repr(time.monotonic()).encode()], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    if request.is_interpreter:
        interpreter_program.serve()
    program.run(source, request.is_function)


def _supervisor(ground: Ground, descriptors: list[int]) -> Supervisor | None:
    if ground.shown is None or not descriptors:
        return None
    listener, memory = descriptors
    return Supervisor(listener, memory, ground.shown, ground.confinement.owner != os.getuid())


def _take_descriptors(request: RunRequest, writer: int, ruleset: int | None) -> tuple[int, int | None]:
    """Make 0, 1, 2 and the claim those of the program, close every other; returns where the two are then."""
    rulesets = [] if ruleset is None else [ruleset]
    kept = [request.shown, request.stdout, request.stderr, request.claim, writer, *rulesets]
    # First out of the way of the low numbers, that none is closed before it was copied.
    high = [_move_up(descriptor, len(kept)) for descriptor in kept]
    for low, descriptor in enumerate(high):
        os.dup2(descriptor, low, inheritable=low < program.CLAIM)
    os.closerange(len(kept), 1 << 10)
    if not request.is_function:
        os.close(program.CLAIM)
    return _WRITER, None if ruleset is None else _WRITER + 1


def _move_up(descriptor: int, lowest: int) -> int:
    copy = os.dup(descriptor)
    return copy if copy >= lowest else _move_up(copy, lowest)


def _await_end(
    child: int,
    request: RunRequest,
    ground: Ground,
    tree: ProcessTree,
    apart: Set[int],
    supervisor: Supervisor | None,
    started_s: float,
) -> _EndReason:
    """Wait until the program ends, the host hangs up, or time, memory or processes are used up."""
    # In a control group the kernel counts, and misses nothing.
    is_watched = Layer.CGROUP not in ground.confinement.layers
    if is_watched and not tree.shows(child):
        raise LayerUnavailable("/proc does not show the memory of programs")
    ended = os.pidfd_open(child)
    end_poll, poll = select.poll(), select.poll()
    for descriptor in (ended, request.control.fileno()):
        end_poll.register(descriptor, select.POLLIN)
        poll.register(descriptor, select.POLLIN)
    if supervisor is not None:
        poll.register(supervisor.listener, select.POLLIN)
    end_s = started_s + request.wall_s
    look_s = started_s + _LOOK_INTERVAL_S if is_watched else math.inf
    control, is_paused = request.control.fileno(), False
    try:
        while (now_s := time.monotonic()) < end_s:
            events = dict(poll.poll(1e3 * max(0.0, min(end_s, look_s) - now_s)))
            if supervisor is not None and events.pop(supervisor.listener, 0) & select.POLLIN:
                supervisor.answer()
            if control in events and (said := _received(request.control)):
                del events[control]
                is_paused = said == PAUSE
                _signal_all(tree, apart, signal.SIGSTOP if is_paused else signal.SIGCONT)
                look_s = min(look_s, time.monotonic() + _LOOK_INTERVAL_S)
            if events:
                return _EndReason.BY_ITSELF
            if time.monotonic() >= look_s:
                if is_paused:
                    _signal_all(tree, apart, signal.SIGSTOP)
                if (end := _excess(tree, ground, apart)) is not None:
                    return end
                look_s = time.monotonic() + (_PAUSED_LOOK_INTERVAL_S if is_paused else _LOOK_INTERVAL_S)
        return _EndReason.BY_ITSELF if end_poll.poll(0) else _EndReason.TIME
    finally:
        os.close(ended)


def _received(control: socket.socket) -> bytes:
    """Return what the host says, or nothing if it has hung up."""
    try:
        return control.recv(1)
    except ConnectionResetError:
        return b""


def _signal_all(tree: ProcessTree, apart: Set[int], number: signal.Signals) -> None:
    for process in tree.descendants().difference(apart):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _excess(tree: ProcessTree, ground: Ground, apart: Set[int]) -> _EndReason | None:
    limits = ground.confinement.limits
    usage = tree.usage(ground.resident_bytes, ground.buffer_bytes, apart)
    if usage.num_bytes > limits.memory_bytes:
        return _EndReason.MEMORY
    # The limit of the kernel, where there is one, lets a few more through: see `confinement`.
    is_counted = Layer.RLIMITS in ground.confinement.layers
    return _EndReason.PROCESSES if is_counted and usage.num_threads > limits.num_processes + _NUM_SPARE else None


def _end_descendants(reaper: int | None, tree: ProcessTree) -> None:
    """Kill all processes that the program left running, and wait until they are gone."""
    if reaper is not None:
        os.kill(reaper, signal.SIGKILL)
        # It ends once all others of its namespace are reaped; some may be children of this process.
        while os.waitpid(-1, _ALL_CHILDREN)[0] != reaper:
            continue
        return
    deadline_s = time.monotonic() + _SWEEP_TIMEOUT_S
    while _has_children():
        if time.monotonic() > deadline_s:
            raise OSError(f"processes of the program could not be ended within {_SWEEP_TIMEOUT_S:g} s")
        _strike(tree)


def _has_children() -> bool:
    """Reap processes that have ended; return whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG | _ALL_CHILDREN)[0]:
            continue
    except ChildProcessError:
        return False
    return True


def _strike(tree: ProcessTree) -> None:
    # Orphans come to this process, so ending its children again and again ends the whole tree. A fork bomb is first
    # deprived of forks, or it would outrun the loop.
    for child in tree.all_descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(child, resource.RLIMIT_NPROC, (0, 0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
