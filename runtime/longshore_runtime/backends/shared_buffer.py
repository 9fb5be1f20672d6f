"""Memory that processes of one pod see together: on a GPU by CUDA IPC, in the host by a file that lies in memory."""

import pickle
import tempfile
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from longshore_runtime.weights.shared import BufferHandle

_SHARED_MEMORY: Final = Path("/dev/shm")
_DEVICE_ARGUMENT: Final = 6
"""Where `rebuild_cuda_tensor` takes the number of the GPU, which processes that see other GPUs count otherwise."""


class SharedBuffer:
    """Bytes on a device; one process writes what others read."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Take the memory."""
        self._file = None
        if device.type == "cuda":
            self.values: Tensor = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            self.handle = BufferHandle(num_bytes, cuda_ipc=pickle.dumps(reduce_tensor(self.values)[1]))  # type: ignore[no-untyped-call]
        else:
            self._file = tempfile.NamedTemporaryFile(prefix="longshore-weights-", dir=_SHARED_MEMORY)  # noqa: SIM115
            self.values = _map(self._file.name, num_bytes)
            self.handle = BufferHandle(num_bytes, file=self._file.name)

    def close(self) -> None:
        """Give the memory back as soon as nobody reads it any more."""
        is_on_gpu = self.values.device.type == "cuda"
        del self.values
        if self._file is not None:
            self._file.close()
        if is_on_gpu:
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def open_buffer(handle: BufferHandle, device: torch.device) -> Tensor:
    """The bytes of a buffer that another process made; `device`: the GPU that it lies on, as this process counts."""
    if handle.file:
        return _map(handle.file, handle.num_bytes)
    arguments = list(pickle.loads(handle.cuda_ipc))
    arguments[_DEVICE_ARGUMENT] = torch.cuda.current_device() if device.index is None else device.index
    values: Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
    return values


def _map(file: str, num_bytes: int) -> Tensor:
    return torch.from_file(file, shared=True, size=num_bytes, dtype=torch.uint8)
