"""Memory shared by processes of one pod: on a GPU by CUDA IPC, on the host by an open file in memory."""

import contextlib
import os
import pickle
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from longshore_runtime.weights.shared import BufferHandle

_DEVICE_ARGUMENT: Final = 6
"""Place of the argument of `rebuild_cuda_tensor` with the number of the GPU.

Processes that see other GPUs count otherwise.
"""


_ALLOCATOR_SETTINGS: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that torch reads; the first one counts."""
_EXPANDABLE: Final = "expandable_segments:True"


class SharedBuffer:
    """Bytes on a device, which one process writes and another reads."""

    def __init__(self, num_bytes: int, device: torch.device, *, is_read: bool = True) -> None:
        """Allocate the memory. `is_read`: another process opens it; torch keeps shared GPU memory until one does."""
        self._file = None
        self.handle: BufferHandle | None = None
        """Handle by which the reader opens the buffer."""
        if not is_read:
            self.values: Tensor = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        elif device.type == "cuda":
            with _memory_for_other_processes():
                self.values = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            self.handle = BufferHandle(num_bytes, cuda_ipc=pickle.dumps(reduce_tensor(self.values)[1]))  # type: ignore[no-untyped-call]
        else:
            # It has no name in a file system: where this process is killed, nothing remains that takes memory.
            self._file = os.fdopen(os.memfd_create("longshore-weights"), "wb")
            descriptor = self._file.fileno()
            os.truncate(descriptor, num_bytes)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            self.handle = BufferHandle(num_bytes, path, identity=_identity(descriptor))
            self.values = _map(self.handle)

    def close(self) -> None:
        """Release the memory. On a GPU, it is free once all readers have closed it and `free_gpu_memory` is called."""
        del self.values
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def _memory_for_other_processes() -> Iterator[None]:
    """Allocate GPU memory that another process can open: torch refuses that for expandable segments."""
    settings = next((os.environ[name] for name in _ALLOCATOR_SETTINGS if os.environ.get(name)), "")
    if _EXPANDABLE not in settings:
        yield
        return
    torch.cuda.empty_cache()  # What is kept of expandable segments would be given out again.
    # Options that are left out would return to their defaults.
    torch._C._accelerator_setAllocatorSettings(settings.replace(_EXPANDABLE, "expandable_segments:False"))
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)


def free_gpu_memory() -> None:
    """Return cached GPU memory to the driver, because another process needs it now."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def open_buffer(handle: BufferHandle, device: torch.device) -> Tensor:
    """Open a buffer of another process; `device` is its GPU, as this process numbers GPUs.

    Raises OSError or RuntimeError if its owner has closed it.
    """
    if handle.file:
        return _map(handle)
    arguments = list(pickle.loads(handle.cuda_ipc))
    arguments[_DEVICE_ARGUMENT] = torch.cuda.current_device() if device.index is None else device.index
    values: Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
    return values


def _map(handle: BufferHandle) -> Tensor:
    # Torch would make whatever is found there as large as the buffer.
    descriptor = os.open(handle.file, os.O_RDWR | os.O_NONBLOCK)
    try:
        if _identity(descriptor) != handle.identity:
            raise RuntimeError("the memory of a shared buffer is gone: its owner has closed it")
        file = f"/proc/self/fd/{descriptor}"
        return torch.from_file(file, shared=True, size=handle.num_bytes, dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
