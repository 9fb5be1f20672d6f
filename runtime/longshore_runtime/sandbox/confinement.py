"""Confine a forked process, step by step, before the first line of a model-written program runs."""

import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore_runtime.sandbox import fstat_trap, landlock, linux, namespaces, seccomp
from longshore_runtime.sandbox.layers import Layer, LayerUnavailable, SandboxLimits
from longshore_runtime.sandbox.visible import DEVICES, ShownPaths, python_paths, shown_paths

_NUM_FILES: Final = 64
_NUM_HELPERS: Final = 4
"""Number of zygote, keeper, reaper and one to spare.

They count where they share a user namespace with the program.
"""
_UNBOUNDED: Final = 1 << 30
_BUFFER_SIZE: Final = Path("/proc/sys/net/core/wmem_default")
_MIN_BUFFER_BYTES: Final = 208 << 10
_COUNTS_BY_NAMESPACE_SINCE: Final = (5, 14)
"""Version of Linux that counts the processes of a user in each user namespace apart."""


@dataclass(frozen=True)
class Confinement:
    """Layers and limits that confine every program of a zygote."""

    layers: frozenset[Layer]
    limits: SandboxLimits
    user: int
    """Numeric user and group of programs where Layer.USER is on."""
    import_paths: Sequence[str]
    is_shared: bool = False
    """Whether several programs run at a time, as one user: the kernel would count the processes of all for each."""

    @property
    def owner(self) -> int:
        """Numeric user that programs run as."""
        return self.user if Layer.USER in self.layers else os.getuid()

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor answers calls with paths: Landlock governs files, and the root directory is the pod's.

        Without Landlock (gVisor), the kernel may lack what a supervisor needs.
        """
        return {Layer.SECCOMP, Layer.LANDLOCK} <= self.layers and Layer.NAMESPACES not in self.layers


@dataclass(frozen=True)
class Ground:
    """State that a zygote prepares once, for all its programs."""

    confinement: Confinement
    in_user_namespace: bool
    base_bytes: int
    """Bytes of the address space of a fork before its program has any."""
    resident_bytes: int
    """Bytes of that address space that are in memory."""
    buffer_bytes: int
    """Most bytes that the kernel keeps for a socket or pipe, which count towards no process's memory."""
    ruleset: int | None
    """Landlock rules that serve every program; None: each needs its own, for its own /tmp."""
    shown: ShownPaths | None
    """Paths that a supervisor lets programs find; None: programs have no supervisor."""


def lay_ground(confinement: Confinement) -> Ground:
    """Prepare this process for the forks that `confine` themselves; raises OSError or LayerUnavailable."""
    layers, buffer_bytes = confinement.layers, _buffer_bytes()
    in_user_namespace = Layer.NAMESPACES in layers and namespaces.enter_shared(
        confinement.import_paths, confinement.owner
    )
    ruleset, shown = None, shown_paths(confinement.import_paths)
    if Layer.LANDLOCK in layers and Layer.NAMESPACES not in layers:
        ruleset = landlock.make_ruleset(shown.real, ["/dev/null"])
    if confinement.is_supervised:
        fstat_trap.install()
    base, resident = (int(pages) * resource.getpagesize() for pages in Path("/proc/self/statm").read_text().split()[:2])
    supervised = shown if confinement.is_supervised else None
    return Ground(confinement, in_user_namespace, base, resident, buffer_bytes, ruleset, supervised)


def confine(ground: Ground, ruleset: int | None) -> list[int]:
    """Apply every layer to this process, for good. `ruleset`: where the ground's is in this process.

    Returns the descriptors that its supervisor needs, if it has one: it must get them before the next call with a
    path, and nobody else may have them.

    Raises:
        OSError, LayerUnavailable: a layer does not hold.
    """
    confinement = ground.confinement
    layers, limits = confinement.layers, confinement.limits
    alone, is_supervised = Layer.NAMESPACES in layers, confinement.is_supervised
    memory = linux.own_memory() if is_supervised else None
    if alone:
        namespaces.cover_proc()
    os.chdir("/tmp" if alone else "/")
    linux.forbid_new_privileges()
    if Layer.LANDLOCK in layers:
        if ruleset is None:
            shown = [*python_paths(confinement.import_paths), *DEVICES, "/proc"]
            ruleset = landlock.make_ruleset(shown, ["/tmp", "/dev/null"])
        landlock.enforce(ruleset)
    linux.drop_bounding_capabilities()
    if Layer.USER in layers:
        become(confinement.user)
    if Layer.RLIMITS in layers:
        _limit(limits, alone, process_limit(ground), ground.base_bytes)
    linux.drop_capabilities()
    linux.die_with_parent(signal.SIGKILL)
    listener = seccomp.install(os.getpid(), alone, is_supervised) if Layer.SECCOMP in layers else None
    return [] if memory is None or listener is None else [listener, memory]


def become(user: int) -> None:
    """Run as another user and group for good; raises LayerUnavailable."""
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise LayerUnavailable(f"changing to user {user}: {error.strerror}") from error


def _limit(limits: SandboxLimits, alone: bool, num_processes: int, base_bytes: int) -> None:
    cpu_s = int(-(-limits.cpu_s // 1))
    _lower(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)  # A signal that says why, and an end for a program that ignores it.
    for kind, value in (
        (resource.RLIMIT_AS, base_bytes + limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes if alone else 0),
        (resource.RLIMIT_NOFILE, _NUM_FILES),
        (resource.RLIMIT_NPROC, num_processes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        _lower(kind, value, value)


def _lower(kind: int, soft: int, hard: int) -> None:
    """Set a limit, but never above the one that is in force."""
    bounds = [bound for bound in resource.getrlimit(kind) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min([soft, *bounds]), min([hard, *bounds])))


def process_limit(ground: Ground) -> int:
    """Return how many processes and threads the kernel may count for the user of the program.

    It counts those of all pods on the node. So it can bound a program only where nothing else runs as that user; the
    keeper counts in any case.
    """
    limits = ground.confinement.limits
    if ground.confinement.is_shared:
        return _UNBOUNDED
    if Layer.USER in ground.confinement.layers:
        return limits.num_processes
    if ground.in_user_namespace and linux.release() >= _COUNTS_BY_NAMESPACE_SINCE:
        return limits.num_processes + _NUM_HELPERS
    return _UNBOUNDED


def _buffer_bytes() -> int:
    try:
        return max(_MIN_BUFFER_BYTES, int(_BUFFER_SIZE.read_text()))
    except OSError:
        return _MIN_BUFFER_BYTES  # Not shown in every container.
