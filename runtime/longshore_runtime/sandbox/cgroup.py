"""Control group (version 2) of one zygote and all its programs: one limit on memory, one on processes.

Used where the container's own group is writable. Programs run one at a time and leave nothing behind, so that one group
serves them all, and joining it costs them nothing.

A group that has processes hands no controllers down to groups below it (version 2's rule against inner processes). So
what runs in the container moves into a leaf first, next to which the groups of sandboxes are made.
"""

import contextlib
import errno
import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore_runtime.sandbox.layers import LayerUnavailable, SandboxLimits

_MOUNT: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = frozenset({"memory", "pids"})
_LEAF: Final = "longshore-pod"
_MAX_TRIES: Final = 10
"""Largest number of attempts to move processes, which may fork meanwhile."""
_HELPER_BYTES: Final = 64 << 20
"""Bytes of the group's memory that zygote, keeper and reaper take."""
_NUM_HELPERS: Final = 4


def own_group(mount: Path = _MOUNT, membership: Path = Path("/proc/self/cgroup")) -> Path:
    """Return the directory of this process's group; raises LayerUnavailable where version 2 is not mounted."""
    if not (mount / "cgroup.controllers").is_file():
        raise LayerUnavailable(f"no control groups of version 2 at {mount}")
    for line in membership.read_text().splitlines():
        if line.startswith("0::"):
            return mount / line.removeprefix("0::").lstrip("/")
    raise LayerUnavailable("this process is in no control group of version 2")


def parent_of_sandboxes(
    own: Path, container: Path = _MOUNT, controllers: Set[str] = _CONTROLLERS, *, leaf: str = _LEAF
) -> Path:
    """Return the group below which groups with limits can be made; raises LayerUnavailable.

    `own`: of this process; `container`: of its container, the topmost that it sees. Only that one is emptied: others
    belong to those who manage the machine.
    """
    group = own.parent if own.name == leaf else own
    try:
        if controllers <= _words(group / "cgroup.subtree_control"):
            return group
        if lacking := controllers - _words(group / "cgroup.controllers"):
            raise LayerUnavailable(f"{group} is not given the controllers {', '.join(sorted(lacking))}")
        _hand_down(group, controllers, group / leaf if group == container else None)
    except OSError as error:
        raise LayerUnavailable(f"{group} cannot hand controllers down: {error.strerror}") from error
    return group


def _hand_down(group: Path, controllers: Set[str], leaf: Path | None) -> None:
    """Enable controllers below a group; its processes may move to `leaf` (None: nowhere).

    Raises OSError or LayerUnavailable.
    """
    wanted = " ".join(f"+{controller}" for controller in sorted(controllers))
    for _ in range(_MAX_TRIES):
        try:
            return _write(group / "cgroup.subtree_control", wanted)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        if leaf is None:
            raise LayerUnavailable(f"{group} has processes, and is not the topmost group of this container")
        leaf.mkdir(exist_ok=True)
        for process in _words(group / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
                _write(leaf / "cgroup.procs", process)
    raise LayerUnavailable(f"{group} gets processes faster than they can be moved")


@dataclass(frozen=True)
class Cgroup:
    """A group below `parent_of_sandboxes`."""

    directory: Path

    @classmethod
    def create(cls, parent: Path, name: str, limits: SandboxLimits) -> "Cgroup":
        """Make a group with limits; raises LayerUnavailable."""
        group = cls(parent / name)
        try:
            group.directory.mkdir()
        except OSError as error:
            raise LayerUnavailable(f"{parent} is not writable: {error.strerror}") from error
        try:
            lacking = _CONTROLLERS - _words(group.directory / "cgroup.controllers")
            if lacking:
                raise LayerUnavailable(f"{parent} does not hand down the controllers {', '.join(sorted(lacking))}")
            group._set("pids.max", limits.num_processes + _NUM_HELPERS)
            group._set("memory.max", limits.memory_bytes + _HELPER_BYTES)
            with contextlib.suppress(FileNotFoundError):  # A kernel without swap accounting has no such file.
                group._set("memory.swap.max", 0)
        except (OSError, LayerUnavailable) as error:
            group.remove()
            raise LayerUnavailable(str(error)) from error
        return group

    def add(self, pid: int) -> None:
        """Put a process, and with it all that it will fork, into the group."""
        self._set("cgroup.procs", pid)

    def num_memory_kills(self) -> int:
        """Return how many processes were killed because the group's memory was used up."""
        events = dict(line.split() for line in (self.directory / "memory.events").read_text().splitlines())
        return int(events["oom_kill"])

    def remove(self) -> None:
        """Kill all remaining processes of the group, and remove it."""
        with contextlib.suppress(OSError):  # Before Linux 5.14 there is no such file; keepers have killed theirs.
            self._set("cgroup.kill", 1)
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)  # noqa: PTH106 - kernel files in it do not count

    def _set(self, name: str, value: int) -> None:
        _write(self.directory / name, str(value))


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())


def _write(path: Path, value: str) -> None:
    # Never created where it is missing: this is a kernel's file.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
