"""Layers of the sandbox, their limits, and what a machine offers. Standard library only."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Layer(StrEnum):
    """One protection, independent of the others.

    Beneath them lies what every Linux grants and nothing switches off: no new privileges, no capabilities, an empty
    environment, no inherited descriptors, an own session, output cut off by its reader, an end to every descendant, and
    a look every few milliseconds at the memory that all of them have.
    """

    NAMESPACES = "Namespaces"
    """Own root file system (read-only, nothing but Python), /tmp, processes, network (none), IPC and host name."""
    SECCOMP = "Seccomp"
    """System calls that Python needs, and no others."""
    LANDLOCK = "Landlock"
    """Files of Python for reading, /tmp for writing; no TCP; no signal and no abstract socket beyond the program."""
    RLIMITS = "Rlimits"
    """CPU time, address space, file sizes, open files and processes."""
    CGROUP = "Cgroup"
    """Memory and processes of the program and its descendants, all together, counted by the kernel at every step."""
    USER = "User"
    """A separate user, if the pod runs as root."""


@dataclass(frozen=True)
class SandboxLimits:
    """Resources that one run of a program may use; a test case may have less wall time."""

    wall_s: float = 10.0
    """Seconds of wall time until everything that the program started is killed."""
    cpu_s: float = 10.0
    """Seconds of CPU time of each process; the kernel counts whole seconds, rounded up."""
    memory_bytes: int = 512 << 20
    """Bytes of memory of all processes together, and of address space of each of them (Rlimits)."""
    num_processes: int = 16
    """Number of processes and threads at a time."""
    file_bytes: int = 16 << 20
    """Bytes of everything written to /tmp.

    Without Namespaces there is no private /tmp, and nothing can be written at all.
    """
    output_bytes: int = 1 << 20
    """Bytes of standard output, standard error and returned value, each; a run whose answer is large has more."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name}: must be greater than 0, not {value!r}")


@dataclass(frozen=True)
class LayerReport:
    """Layers that hold on this machine, and the reasons why the others do not."""

    reasons: Mapping[Layer, str | None]
    """Sentence on why a layer is not available, by layer; None: it is."""

    @property
    def available(self) -> frozenset[Layer]:
        """Layers that can be used."""
        return frozenset(layer for layer, reason in self.reasons.items() if reason is None)

    def missing(self, required: Collection[Layer]) -> str | None:
        """Return one sentence that names the layers of `required` that cannot be used here; None: all can."""
        reasons = [f"{layer} ({reason})" for layer in Layer if layer in required and (reason := self.reasons[layer])]
        return f"the sandbox cannot have {', '.join(reasons)} here" if reasons else None


class LayerUnavailable(Exception):
    """Raised when a layer cannot be used on this machine; the message is one sentence that says why."""
