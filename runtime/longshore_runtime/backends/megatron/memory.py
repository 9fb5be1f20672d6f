"""The contiguous buffers that Megatron keeps weights and gradients in, given up and taken back."""

from collections.abc import Iterable, Iterator

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor


class GradientMemory:
    """See `accumulation.GradientBuffers`."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._sizes = [buffer.grad_data.untyped_storage().size() for buffer in model.buffers]

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers: sums of this rank, unreduced."""
        return [buffer.grad_data for buffer in self._model.buffers]

    @property
    def gradients(self) -> Iterator[Tensor]:
        """This rank's shard of every parameter's."""
        return (parameter.main_grad for parameter in self._model.module.parameters())

    def place(self) -> None:
        """Take the memory; the buffers are zeros."""
        for tensor, size in zip(self.tensors, self._sizes, strict=True):
            tensor.untyped_storage().resize_(size)
        self._model.zero_grad_buffer()

    def release(self) -> None:
        """Give the memory back."""
        _release(self.tensors)


class WeightMemory:
    """The weights: in the buffers, of which all parameters are views, or on the host."""

    def __init__(self, model: DistributedDataParallel, device: torch.device) -> None:
        self._buffers = list(model.buffers)
        self._pinned = device.type == "cuda"
        self._kept: list[Tensor] = []
        self._asleep = False

    def offload(self) -> None:
        """Leave the device; nothing may use a parameter's values from now on, but through `shard`."""
        if self._asleep:
            return
        tensors = self._tensors
        if not self._kept:
            self._kept = [torch.empty(one.shape, dtype=one.dtype, pin_memory=self._pinned) for one in tensors]
        for kept, tensor in zip(self._kept, tensors, strict=True):
            kept.copy_(tensor)
        _release(tensors)
        self._asleep = True

    def reload(self) -> None:
        """Come back."""
        if not self._asleep:
            return
        for kept, tensor in zip(self._kept, self._tensors, strict=True):
            tensor.untyped_storage().resize_(kept.untyped_storage().size())
            tensor.copy_(kept)
        self._asleep = False

    def shard(self, parameter: Tensor) -> Tensor:
        """A parameter's values on the device; of an offloaded one a copy."""
        if not self._asleep:
            return parameter.detach()
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            if place := buffer.param_index_map.get(parameter):
                start, end = place[:2]
                return kept[start:end].view(parameter.shape).to(parameter.device, copy=True)
        raise AssertionError("a parameter lies in one of the buffers")

    @property
    def _tensors(self) -> list[Tensor]:
        return [buffer.param_data for buffer in self._buffers]


def _release(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)
