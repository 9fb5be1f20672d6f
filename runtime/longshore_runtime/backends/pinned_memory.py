"""Memory of the host that is pinned: copies between it and a GPU take a fraction of the time."""

import contextlib
import weakref
from typing import Any

import structlog
import torch
from torch import Tensor

log = structlog.get_logger()


class PinnedMemory:
    """Tensors on the host that are pinned until this object is gone; without a GPU, none is.

    torch's own pinned memory (`pin_memory=True`) is rounded up to a power of two.
    """

    def __init__(self, device: torch.device) -> None:
        """Prepare to pin tensors whose values come from and go to `device`."""
        self._device = device
        self._pins = device.type == "cuda"
        self._pinned: list[Tensor] = []
        # Memory must not be freed while it is pinned: the next owner would copy from and to the old pages.
        weakref.finalize(self, _unpin, self._pinned).atexit = False

    def pin(self, tensor: Tensor) -> Tensor:
        """Pin a tensor and return it; if that is not possible, it stays as it is, with a warning."""
        # A shard of FSDP2 has its memory inside.
        own: Tensor = getattr(tensor, "_local_tensor", tensor)
        if not self._pins or own.nbytes == 0:
            return tensor
        if error := int(_cuda().cudaHostRegister(own.data_ptr(), own.nbytes, 0)):
            log.warning("memory on the host cannot be pinned: copies will be slow", error=error, num_bytes=own.nbytes)
            self._pins = False
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)  # Raises the error that CUDA remembers, instead of what comes next.
        else:
            self._pinned.append(own)
        return tensor


def _unpin(pinned: list[Tensor]) -> None:
    for tensor in pinned:
        _cuda().cudaHostUnregister(tensor.data_ptr())
    pinned.clear()


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
