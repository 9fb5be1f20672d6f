"""Processes of pods that outlived their keepers, found by the marks in their environment."""

import os
import signal
from pathlib import Path

from longshore_devcluster.kubelet.shim import processes, send_signal

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
    marks = {f"{POD_MARK}={pod_uid}".encode()}
    if container:
        marks.add(f"{CONTAINER_MARK}={container}".encode())
    return [pid for pid, _ in processes() if pid != os.getpid() and marks <= _environment(pid)]


def _environment(pid: int) -> set[bytes]:
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        # It has ended, or belongs to another user and so to no pod of ours.
        return set()
