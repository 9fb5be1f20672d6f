"""Control group (version 2) of one zygote and all its programs: one limit on memory, one on processes.

Used where the pod's own group is writable and hands the controllers down. Programs run one at a time and leave nothing
behind, so that one group serves them all, and joining it costs them nothing.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from longshore_runtime.sandbox.layers import LayerUnavailable, SandboxLimits

_MOUNT: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = frozenset({"memory", "pids"})
_HELPER_BYTES: Final = 64 << 20
"""What zygote, keeper and reaper take of the group's memory."""
_NUM_HELPERS: Final = 4


def own_group(mount: Path = _MOUNT, membership: Path = Path("/proc/self/cgroup")) -> Path:
    """Directory of the group that this process is in; raises LayerUnavailable where version 2 is not mounted."""
    if not (mount / "cgroup.controllers").is_file():
        raise LayerUnavailable(f"no control groups of version 2 at {mount}")
    for line in membership.read_text().splitlines():
        if line.startswith("0::"):
            return mount / line.removeprefix("0::").lstrip("/")
    raise LayerUnavailable("this process is in no control group of version 2")


@dataclass(frozen=True)
class Cgroup:
    """A group below `own_group`."""

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
            lacking = _CONTROLLERS - set((group.directory / "cgroup.controllers").read_text().split())
            if lacking:
                raise LayerUnavailable(f"{parent} does not hand down the controllers {', '.join(sorted(lacking))}")
            group._write("pids.max", limits.num_processes + _NUM_HELPERS)
            group._write("memory.max", limits.memory_bytes + _HELPER_BYTES)
            with contextlib.suppress(FileNotFoundError):  # A kernel without swap accounting has no such file.
                group._write("memory.swap.max", 0)
        except (OSError, LayerUnavailable) as error:
            group.remove()
            raise LayerUnavailable(str(error)) from error
        return group

    def add(self, pid: int) -> None:
        """Put a process, and with it all that it will fork, into the group."""
        self._write("cgroup.procs", pid)

    def num_memory_kills(self) -> int:
        """Processes that were killed because the group's memory was used up."""
        events = dict(line.split() for line in (self.directory / "memory.events").read_text().splitlines())
        return int(events["oom_kill"])

    def remove(self) -> None:
        """Kill whatever is left in the group, and remove it."""
        with contextlib.suppress(OSError):  # Before Linux 5.14 there is no such file; keepers have killed theirs.
            self._write("cgroup.kill", 1)
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)  # noqa: PTH106 - kernel files in it do not count

    def _write(self, name: str, value: int) -> None:
        # Never created where it is missing: this is a kernel's file.
        descriptor = os.open(self.directory / name, os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
