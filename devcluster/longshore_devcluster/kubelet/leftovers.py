"""Processes of pods that outlived their keepers, found by the marks in their environment."""

import os
import signal

from longshore_devcluster.kubelet.shim import send_signal

POD_MARK = "DEVCLUSTER_POD_UID"
CONTAINER_MARK = "DEVCLUSTER_CONTAINER"


def kill_marked(pod_uid: str, container: str = "") -> list[int]:
    """Kill every process that carries the mark of a pod (of one container of it), until there is none.

    Returns the process ids.
    """
    killed: list[int] = []
    while True:
        found = [pid for pid in marked_processes(pod_uid, container) if pid not in killed]
        if not found:
            return killed
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed += found


def marked_processes(pod_uid: str, container: str = "") -> list[int]:
    """Return the living processes that were started with the mark of a pod (of one container of it)."""
    marks = [f"{POD_MARK}={pod_uid}".encode()]
    if container:
        marks.append(f"{CONTAINER_MARK}={container}".encode())
    # A process that has ended has no environment, so nobody has to ask for its state.
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return [pid for pid in pids if pid != os.getpid() and _carries(pid, marks)]


def _carries(pid: int, marks: list[bytes]) -> bool:
    """Return whether the environment with which a process was started has all of these entries."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - read for every process of the machine
            environment = b"\0" + file.read()
    except OSError:
        # It has ended, or belongs to another user and so to no pod of ours.
        return False
    return all(b"\0" + mark + b"\0" in environment for mark in marks)
