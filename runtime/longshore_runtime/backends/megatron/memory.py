"""Release and restore the contiguous buffers in which Megatron keeps weights and gradients."""

from collections.abc import Iterable, Iterator

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from longshore_runtime.backends.devices import HOST
from longshore_runtime.backends.pinned_memory import PinnedMemory


class GradientMemory:
    """Gradient buffers of Megatron; see `accumulation.GradientBuffers`."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._sizes = [buffer.grad_data.untyped_storage().size() for buffer in model.buffers]

    @property
    def tensors(self) -> list[Tensor]:
        """Return the buffers, with unreduced sums of this rank."""
        return [buffer.grad_data for buffer in self._model.buffers]

    @property
    def gradients(self) -> Iterator[Tensor]:
        """Return this rank's shard of every parameter's gradient."""
        return (parameter.main_grad for parameter in self._model.module.parameters())

    def place(self) -> None:
        """Allocate the buffers, filled with zeros."""
        for tensor, size in zip(self.tensors, self._sizes, strict=True):
            tensor.untyped_storage().resize_(size)
        self._model.zero_grad_buffer()

    def release(self) -> None:
        """Free the buffers."""
        _release(self.tensors)


class WeightMemory:
    """Weights, either in the buffers, of which all parameters are views, or on the host."""

    def __init__(self, model: DistributedDataParallel, device: torch.device) -> None:
        self._buffers = list(model.buffers)
        self._memory = PinnedMemory(device)
        self._kept: list[Tensor] = []
        self._asleep = False

    def offload(self) -> None:
        """Move the weights to the host; parameters may then be read through `shard` only."""
        if self._asleep:
            return
        tensors = self._tensors
        if not self._kept:
            self._kept = [self._memory.pin(torch.empty(one.shape, dtype=one.dtype)) for one in tensors]
        for kept, tensor in zip(self._kept, tensors, strict=True):
            kept.copy_(tensor)
        _release(tensors)
        self._asleep = True

    def reload(self) -> None:
        """Move the weights back to the device."""
        if not self._asleep:
            return
        for kept, tensor in zip(self._kept, self._tensors, strict=True):
            tensor.untyped_storage().resize_(kept.untyped_storage().size())
            tensor.copy_(kept)
        self._asleep = False

    def shard(self, parameter: Tensor) -> Tensor:
        """Return a parameter's values on the device; a copy if they are offloaded."""
        return self.on_host(parameter).to(parameter.device, copy=True) if self._asleep else parameter.detach()

    def on_host(self, parameter: Tensor) -> Tensor:
        """Return a parameter's values on the host, which stay until the next update."""
        if not self._asleep:
            return parameter.detach().to(HOST, copy=True)
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            if place := buffer.param_index_map.get(parameter):
                start, end = place[:2]
                return kept[start:end].view(parameter.shape)
        raise AssertionError("a parameter lies in one of the buffers")

    @property
    def _tensors(self) -> list[Tensor]:
        return [buffer.param_data for buffer in self._buffers]


def _release(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)
