"""Processes of pods that outlived their keepers, found by a mark in their environment."""

import os
import signal
from pathlib import Path

from longshore_devcluster.kubelet.context import MARKER
from longshore_devcluster.kubelet.shim import processes, send_signal


def kill_marked(pod_uid: str) -> list[int]:
    """Kill every process that carries the mark of a pod, again and again until there is none.

    Returns the process ids.
    """
    killed: list[int] = []
    while True:
        found = [pid for pid in marked_processes(pod_uid) if pid not in killed]
        if not found:
            return killed
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed += found


def marked_processes(pod_uid: str) -> list[int]:
    """The living processes that were started with the mark of a pod."""
    mark = f"{MARKER}={pod_uid}".encode()
    return [pid for pid, _ in processes() if pid != os.getpid() and mark in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        # It has ended, or belongs to another user and so to no pod of ours.
        return []
