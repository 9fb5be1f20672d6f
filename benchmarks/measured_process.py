"""A process of another program whose CPU time and memory are measured, such as an operator."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

_PORTS: Final = range(10_000, 30_000)
"""Ports below those that Linux gives to connections and to listeners on port 0, unless configured otherwise."""


def free_port() -> int:
    """Return a port of this machine that nobody listens on, for a process that is still to start.

    Not one that the kernel would choose: until the process listens, a connection of any program could get the same.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class MeasuredProcess:
    """Process that is started with an API server to talk to, and a file for its output."""

    def __init__(self, command: Sequence[str], kubeconfig: Path, log: Path) -> None:
        with log.open("a") as output:
            self._process = subprocess.Popen(
                command, env=os.environ | {"KUBECONFIG": str(kubeconfig)}, stdout=output, stderr=output
            )

    def peak_memory_mib(self) -> float:
        """Return the largest resident memory so far, in MiB."""
        return peak_memory_mib(self._process.pid)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads so far."""
        return cpu_s(self._process.pid)

    def stop(self) -> None:
        """Ask the process to end, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


def peak_memory_mib(pid: int) -> float:
    """Return the largest resident memory of a process so far, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, of all its threads."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
