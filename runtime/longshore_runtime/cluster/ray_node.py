"""This pod as a Ray node: starting it, noticing its end, ending it with everything that it started.

Nodes have addresses of their own but may share a machine (a development cluster), so only the head has a fixed port.
"""

import contextlib
import os
import re
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
import structlog
import tenacity

from longshore_runtime.cluster.node_starter import NodeStarter
from longshore_runtime.cluster.placement import node_labels
from longshore_runtime.cluster.worker_imports import WorkerImports
from longshore_runtime.settings import Settings

log = structlog.get_logger()

START_LIMIT_S = 120.0
JOIN_LIMIT_S = 300.0
DEREGISTER_LIMIT_S = 1.0
"""Time for a node to take leave of its head; what remains is killed."""
_ANSWER_LIMIT_S = 2.0
STOP_LIMIT_S = 10.0
GOODBYE_LIMIT_S = 10.0
NUM_LOG_LINES: Final = 15

_CORE_PROCESSES = ("raylet", "gcs_server")
_MAX_TEMP_PATH = 40
"""Longest path of Ray's directory: sockets lie about 65 characters below it, and their paths have at most 107."""
_EXCEPTION: Final = re.compile(r"[\w.]+(Error|Exception): ")


class RayNodeError(Exception):
    """Raised when the node cannot start; the message is one sentence."""


class RayNode:
    """The Ray processes of this pod. As a context manager it stops them at the end of the block."""

    def __init__(self, temp_dir: Path, session: int, core: Sequence[psutil.Process], lifeline: int) -> None:
        """Take over a started node; `lifeline` is the end of a pipe that this process holds."""
        self._temp_dir = temp_dir
        self._session = session
        self._core = core
        self._lifeline = os.fdopen(lifeline, "wb")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a process that the node cannot do without ends; False when the time is over first."""
        with contextlib.ExitStack() as stack:
            try:
                watched = [os.pidfd_open(process.pid) for process in self._core]
            except ProcessLookupError:
                return True  # It ended before it could be watched.
            for descriptor in watched:
                stack.callback(os.close, descriptor)
            # A pidfd becomes readable when its process ends. `waitpid` cannot wait: these are no child processes.
            ended, _, _ = select.select(watched, [], [], timeout_s)
            return bool(ended)

    def last_log_lines(self) -> list[str]:
        """Return the newest lines of Ray's own logs, at most NUM_LOG_LINES of each."""
        logs = self._temp_dir.glob("session_latest/logs/*")
        wanted = sorted(log for log in logs if log.stem in _CORE_PROCESSES)
        return [line for log in wanted for line in log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:]]

    def stop(self) -> None:
        """End the node with everything that runs on it; a second call does nothing."""
        for process in self._core:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(self._core, timeout=DEREGISTER_LIMIT_S)
        # The fork server of the workers ends with its lifeline, and can start no more while the rest is killed.
        self._lifeline.close()
        _discard(self._temp_dir, self._session)

    def __enter__(self) -> "RayNode":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def head_starter() -> NodeStarter:
    """Return what starts the Ray head of this pod, early: a fork that has imported Ray as this process has."""
    import longshore_runtime.cluster.ray_start  # noqa: F401 - not in pods that leave Ray to their nodes

    return NodeStarter(WorkerImports(), is_head=True)


def start_head(settings: Settings, starter: NodeStarter) -> RayNode:
    """Start the Ray head in this pod; raises RayNodeError."""
    return _start(settings, starter, port=settings.ray_port)


def join(settings: Settings, starter: NodeStarter) -> RayNode:
    """Join the head of this attempt, waiting until it answers; raises RayNodeError when it does not in time.

    `starter`: for the first attempt, and an example of those for further ones.
    """

    def log_attempt(state: tenacity.RetryCallState) -> None:
        log.info("the coordinator's Ray head does not answer yet", address=settings.ray_address)

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(RayNodeError),
        stop=tenacity.stop_after_delay(JOIN_LIMIT_S),
        wait=tenacity.wait_exponential(multiplier=0.2, max=2),
        before_sleep=log_attempt,
        reraise=True,
    )
    return attempts(_join_once, settings, starter)


def head_answers(settings: Settings) -> bool:
    """Return whether something listens where the Ray head should."""
    try:
        with socket.create_connection((settings.coordinator_ip, settings.ray_port), _ANSWER_LIMIT_S):
            return True
    except OSError:
        return False


def head_is_ending(settings: Settings) -> bool:
    """Return whether the Ray head is gone, or goes in a moment: its nodes may notice before its port is closed."""
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda answers: answers),
        stop=tenacity.stop_after_delay(GOODBYE_LIMIT_S),
        wait=tenacity.wait_fixed(0.2),
        retry_error_callback=lambda state: True,
    )
    return not attempts(head_answers, settings)


def _join_once(settings: Settings, starter: NodeStarter) -> RayNode:
    if not head_answers(settings):
        raise RayNodeError(f"no Ray head answers at {settings.ray_address}")
    with NodeStarter(starter.imports) if starter.is_used else contextlib.nullcontext(starter) as unused:
        return _start(settings, unused, address=settings.ray_address)


def _start(settings: Settings, starter: NodeStarter, port: int | None = None, address: str | None = None) -> RayNode:
    """Start a node. `node_start` ends once it is registered, and leaves its processes behind in its session."""
    temp_dir = _temp_dir()
    options = {
        "ip": settings.pod_ip,
        "temp_dir": str(temp_dir),
        "labels": node_labels(settings.component, settings.index),
        "port": port,
        "address": address,
    }
    with contextlib.ExitStack() as unless_started:
        unless_started.callback(_discard, temp_dir, starter.pid)
        # Ray is imported in a process of its own: the pod's health server answers meanwhile.
        status, output = starter.start(options, START_LIMIT_S)
        if status is None:
            raise RayNodeError(f"Ray did not start within {START_LIMIT_S:.0f} s")
        if status != 0:
            raise RayNodeError(f"Ray did not start (exit status {status}): {_reason(output)}")
        core = core_processes(starter.pid)
        if not core:
            raise RayNodeError("Ray started and ended at once")
        unless_started.pop_all()  # It has started: from here on `RayNode.stop` cleans up.
    return RayNode(temp_dir, starter.pid, core, starter.take_lifeline())


def _reason(output: str) -> str:
    """Return the exception's message in one line, or the last line; Ray's exceptions quote its processes' logs."""
    lines = output.split("\n")
    begins = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    return (
        " ".join(" ".join(lines[begins[-1] :]).split())
        if begins
        else output.strip().rpartition("\n")[2] or "no message"
    )


def _temp_dir() -> Path:
    """Make a directory for one start, short enough for sockets: Ray refuses one that an earlier node still uses."""
    configured = tempfile.gettempdir()
    parent = configured if len(configured) + len("/ray-12345678") <= _MAX_TEMP_PATH else "/tmp"
    return Path(tempfile.mkdtemp(prefix="ray-", dir=parent))


def core_processes(session: int) -> list[psutil.Process]:
    """Return those that the node of this session cannot do without.

    A child of a raylet has its name too, until it runs its own program; the raylet is the oldest.
    """
    found: list[tuple[float, str, psutil.Process]] = []
    for process in _members(session):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append((process.create_time(), process.name(), process))
    oldest: dict[str, psutil.Process] = {}
    for _, name, process in sorted(found, key=lambda one: one[0]):
        oldest.setdefault(name, process)
    return [oldest[name] for name in _CORE_PROCESSES if name in oldest]


def _discard(temp_dir: Path, session: int) -> None:
    """Kill until nothing is left: a process may start another while it is being looked for."""
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while remaining := _members(session):
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(remaining, timeout=1)
        if time.monotonic() > deadline_s:
            log.error("processes of the Ray node do not end", pids=[process.pid for process in remaining])
            break
    shutil.rmtree(temp_dir, ignore_errors=True)


def _members(session: int) -> list[psutil.Process]:
    """Return the living processes of a session.

    The session tells them, because Ray's processes overwrite their environment and lose their parents.
    """
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members
