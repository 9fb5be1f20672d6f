"""Tensors that leave the device and come back, again and again."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from longshore_runtime.backends.devices import HOST
from longshore_runtime.backends.pinned_memory import PinnedMemory

Move = Callable[[Tensor], Tensor]
Apply = Callable[[Move], object]
"""Function that calls another for each of some tensors, in the same order every time, and puts in what it returns."""


class HostCopies:
    """The memory of some tensors on the host while they are not on the device.

    The memory is pinned, without which copies take several times as long, and kept, because pinning takes long, too.
    """

    def __init__(
        self, device: torch.device, apply: Apply, *, is_frozen: Callable[[Tensor], bool] = lambda tensor: False
    ) -> None:
        """Prepare copies; tensors for which `is_frozen` is true never change, and are copied to the host once."""
        self._device = device
        self._apply = apply
        self._is_frozen = is_frozen
        self._memory = PinnedMemory(device)
        self._kept: dict[int, Tensor] = {}
        """Tensors on the host, by place in the order of `apply`."""

    def leave(self) -> None:
        """Move the tensors to the host; those that are there already stay."""
        places = itertools.count()

        def to_host(tensor: Tensor) -> Tensor:
            place = next(places)
            if tensor.device == HOST:
                return tensor
            if place not in self._kept:
                self._kept[place] = self._memory.pin(tensor.to(HOST))
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
