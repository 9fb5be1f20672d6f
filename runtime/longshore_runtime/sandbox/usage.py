"""The processes that a program started and the memory that they have, from what the kernel shows of every process.

Files of /proc are opened below a descriptor: a program's namespace covers the path, for its keeper as well.
"""

import contextlib
import os
import resource
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_PAGE_BYTES: Final = resource.getpagesize()
_RESIDENT_AT: Final = 1
_PARENT_AT: Final = 1
_THREADS_AT: Final = 17
_FEW_DESCRIPTORS: Final = 8
_READ_BYTES: Final = 1 << 12
_PROCESS_ENDED: Final = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True)
class Usage:
    """Memory and threads that the processes of a program have together."""

    num_bytes: int
    num_threads: int
    """Number of threads; a process without further ones counts as one."""


class ProcessTree:
    """The descendants of this process."""

    def __init__(self) -> None:
        """Look at /proc as this process sees it now; raises OSError."""
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._root = os.getpid()
        # Not in every kernel.
        self._children_are_listed = self._exists(f"{self._root}/task/{threading.get_native_id()}/children")

    def shows(self, process: int) -> bool:
        """Return whether this process, which is there, can be seen."""
        return self._exists(f"{process}/statm")

    def resident_bytes(self, process: int) -> int:
        """Return the bytes of a process that are in memory, shared pages too, or 0 if it has ended.

        Raises OSError once it is gone.
        """
        return int(self._read(f"{process}/statm").split()[_RESIDENT_AT]) * _PAGE_BYTES

    def usage(self, base_bytes: int, buffer_bytes: int, apart: Collection[int] = ()) -> Usage:
        """Return what all descendants but those `apart` have together.

        Memory is what is resident of each, without the `base_bytes` that it shares with this process, and, for each
        descriptor beyond the first few, `buffer_bytes`: as much as the kernel may keep for a socket. Other pages that
        they share count for each of them.
        """
        num_bytes = num_threads = 0
        for process in self.descendants().difference(apart):
            with contextlib.suppress(*_PROCESS_ENDED):
                num_threads += self._num_threads(process)
                num_bytes += max(0, self.resident_bytes(process) - base_bytes)
                num_bytes += max(0, self._num_descriptors(process) - _FEW_DESCRIPTORS) * buffer_bytes
        return Usage(num_bytes, num_threads)

    def descendants(self) -> set[int]:
        """Return the descendants, quickly; of processes that come and go meanwhile some may lack."""
        if not self._children_are_listed:
            return self.all_descendants()
        found: set[int] = set()
        unvisited = [self._root]
        while unvisited:
            children = self._children(unvisited.pop()) - found
            found |= children
            unvisited += children
        return found

    def all_descendants(self) -> set[int]:
        """Return the descendants, by the parent of every process that there is."""
        parents: dict[int, int] = {}
        for process in filter(str.isdigit, self._names(".")):
            with contextlib.suppress(*_PROCESS_ENDED):
                parents[int(process)] = int(self._read(f"{process}/stat").rpartition(b")")[2].split()[_PARENT_AT])
        found = {self._root}
        while more := {child for child, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self._root}

    def _num_threads(self, process: int) -> int:
        return int(self._read(f"{process}/stat").rpartition(b")")[2].split()[_THREADS_AT])

    def _num_descriptors(self, process: int) -> int:
        try:
            return len(self._names(f"{process}/fd"))
        except PermissionError:
            return _FEW_DESCRIPTORS  # Of another user, whom this process may not look at.

    def _children(self, process: int) -> set[int]:
        found: set[int] = set()
        with contextlib.suppress(*_PROCESS_ENDED):
            for thread in self._names(f"{process}/task"):
                with contextlib.suppress(*_PROCESS_ENDED):
                    found.update(map(int, self._read(f"{process}/task/{thread}/children").split()))
        return found

    def _names(self, path: str) -> list[str]:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        try:
            return os.listdir(directory)  # noqa: PTH208 - of a descriptor
        finally:
            os.close(directory)

    def _read(self, path: str) -> bytes:
        file = os.open(path, os.O_RDONLY, dir_fd=self._proc)
        try:
            content = b""
            while chunk := os.read(file, _READ_BYTES):
                content += chunk
            return content
        finally:
            os.close(file)

    def _exists(self, path: str) -> bool:
        try:
            os.stat(path, dir_fd=self._proc)
        except _PROCESS_ENDED:
            return False
        return True
