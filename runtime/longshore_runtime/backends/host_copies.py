"""Tensors that leave the device and come back, again and again."""

import contextlib
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import structlog
import torch
from torch import Tensor

from longshore_runtime.backends.devices import HOST

log = structlog.get_logger()

Move = Callable[[Tensor], Tensor]
Apply = Callable[[Move], object]
"""Calls a function for each of some tensors, always in the same order, and replaces them by what it returns."""


class HostCopies:
    """The memory of some tensors on the host while they are not on the device.

    The memory is pinned, without which copies take several times as long, and kept, because pinning takes long, too.
    """

    def __init__(
        self, device: torch.device, apply: Apply, *, is_frozen: Callable[[Tensor], bool] = lambda tensor: False
    ) -> None:
        """`is_frozen` says which tensors never change: they are copied to the host once."""
        self._device = device
        self._apply = apply
        self._is_frozen = is_frozen
        self._pins = device.type == "cuda"
        self._kept: dict[int, Tensor] = {}
        """By place in the order of `apply`."""
        self._pinned: list[Tensor] = []
        # Memory must not be freed while it is pinned: the next owner would copy from and to the old pages.
        weakref.finalize(self, _unpin, self._pinned).atexit = False

    def leave(self) -> None:
        """Move the tensors to the host; those that are there already stay."""
        places = itertools.count()

        def to_host(tensor: Tensor) -> Tensor:
            place = next(places)
            if tensor.device == HOST:
                return tensor
            if place not in self._kept:
                self._kept[place] = tensor.to(HOST)
                self._pin(self._kept[place])
            elif not self._is_frozen(tensor):
                # Not in the background: with FSDP2, `apply` may read the copy before it returns.
                self._kept[place].copy_(tensor)
            return self._kept[place]

        self._apply(to_host)

    def come_back(self) -> None:
        """Move the tensors to the device."""
        self._apply(lambda tensor: tensor.to(self._device, non_blocking=True))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _pin(self, copied: Tensor) -> None:
        # torch's own pinned memory is rounded up to a power of two. A shard of FSDP2 has its memory inside.
        own: Tensor = getattr(copied, "_local_tensor", copied)
        if not self._pins or own.nbytes == 0:
            return
        if error := int(_cuda().cudaHostRegister(own.data_ptr(), own.nbytes, 0)):
            log.warning("memory on the host cannot be pinned: copies will be slow", error=error, num_bytes=own.nbytes)
            self._pins = False
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)  # Raises the error that CUDA remembers, instead of what comes next.
        else:
            self._pinned.append(own)


def _unpin(pinned: list[Tensor]) -> None:
    for tensor in pinned:
        _cuda().cudaHostUnregister(tensor.data_ptr())
    pinned.clear()


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
