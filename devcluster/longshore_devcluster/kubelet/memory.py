"""Memory limits of containers: the kubelet ends a container whose processes hold more than `resources.limits.memory`.

Control groups need rights that users of the embedded cluster rarely have, so the kubelet looks once a second:

    scan of /proc (all processes)        ──►  resident size of each container, where shared pages count in each process
    if that is above the limit of one    ──►  smaps_rollup of its processes, where each page counts once

Like a kernel with control groups of version 2 and `memory.oom.group`, it then kills all processes of the container.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from longshore_devcluster.kubelet.shim import descendants, processes
from longshore_kube.quantities import parse_quantity
from longshore_kube.resources import Json

_INTERVAL_S: Final = 1.0
_MAX_SKIPPED: Final = 10
"""Looks between two measurements of a container that seems to grow slowly: pages that were shared may be so no more."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_COUNTED: Final = (b"Pss_Anon:", b"Pss_Shmem:")
"""Pages that the kernel cannot drop; those of files do not count."""


class Limited(Protocol):
    """A running container."""

    def keepers(self) -> list[int]:
        """Return the ids of the processes of which all processes of the container are descendants."""

    def kill_for_memory(self) -> None:
        """End every process of the container."""


class MemoryGuard:
    """Decides from the sizes of one container when to measure it, and whether it is over its limit. Pure."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._measured: tuple[int, int] | None = None
        """Resident and used bytes at the last measurement."""
        self._num_skipped = 0

    def must_measure(self, resident_bytes: int) -> bool:
        """Return whether the container may be over its limit.

        Args:
            resident_bytes: sum of the resident sizes of its processes, at least what they use together.
        """
        if resident_bytes <= self._limit_bytes:
            return False
        if self._measured is None:
            return True
        resident_then, used_then = self._measured
        self._num_skipped += 1
        has_grown = resident_bytes - resident_then >= (self._limit_bytes - used_then) / 2
        return has_grown or self._num_skipped >= _MAX_SKIPPED

    def is_exceeded(self, resident_bytes: int, used_bytes: int) -> bool:
        """Return whether a measurement is above the limit."""
        self._measured, self._num_skipped = (resident_bytes, used_bytes), 0
        return used_bytes > self._limit_bytes


class MemoryLimits:
    """Watches the containers that have a limit."""

    def __init__(self) -> None:
        self._guards: dict[Limited, MemoryGuard] = {}

    @contextmanager
    def enforced(self, container: Limited, limit_bytes: int | None) -> Iterator[None]:
        """Watch a container, if it has a limit, until the block exits."""
        if limit_bytes is None:
            yield
            return
        self._guards[container] = MemoryGuard(limit_bytes)
        try:
            yield
        finally:
            del self._guards[container]

    async def run(self) -> None:
        """Look at the containers until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if not self._guards:
                continue
            watched = [(container, guard, container.keepers()) for container, guard in self._guards.items()]
            for container in await asyncio.to_thread(_over_limit, watched):
                if container in self._guards:
                    container.kill_for_memory()


def memory_limit_bytes(container: Json, pod: Json) -> int | None:
    """Return the limit of a container, or of its whole pod if it has none of its own; None: it is not limited."""
    for limited in (container, pod["spec"]):
        quantity = ((limited.get("resources") or {}).get("limits") or {}).get("memory")
        if quantity is not None:
            return int(parse_quantity(quantity)) or None
    return None


def _over_limit(watched: Iterable[tuple[Limited, MemoryGuard, Sequence[int]]]) -> list[Limited]:
    """Return the containers that are over their limits now."""
    tree = processes()
    resident = {pid: pages * _PAGE_BYTES for pid, _, pages in tree}
    found = []
    for container, guard, keepers in watched:
        pids = [pid for keeper in keepers for pid in descendants(keeper, tree)]
        resident_bytes = sum(resident[pid] for pid in pids)
        if guard.must_measure(resident_bytes) and guard.is_exceeded(resident_bytes, sum(map(_used_bytes, pids))):
            found.append(container)
    return found


def _used_bytes(pid: int) -> int:
    """Return the memory of a process that the kernel cannot drop: a page of n processes counts 1/n in each."""
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123 - read often
        entries = (line.split() for line in file)
        return sum(int(entry[1]) << 10 for entry in entries if entry[0] in _COUNTED)
    return 0  # It has ended, or belongs to another user.
