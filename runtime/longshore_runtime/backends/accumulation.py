"""Gradients that add up over many calls: where they are kept, and how they are verified."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from longshore_runtime.backends.pinned_memory import PinnedMemory

_VALUES_PER_PART: Final = 1 << 24
"""Number of values copied or summed at a time; all at once would take as much memory as the gradients."""


class GradientBuffers(Protocol):
    """Buffers on the computing device, to which backward passes add gradients."""

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Return the buffers, which must not be released."""

    @property
    def gradients(self) -> Iterable[Tensor]:
        """Return each parameter's part of the buffers."""

    def place(self) -> None:
        """Allocate the buffers, filled with zeros."""

    def release(self) -> None:
        """Free the buffers, and lose what is in them."""


class Accumulation:
    """The gradients of one update so far: in the buffers, on the host, or partly in both.

    Empty buffers are released. On the CPU it works the same way, between two places in
    memory.
    """

    def __init__(self, buffers: GradientBuffers, device: torch.device, *, offloads: bool) -> None:
        """Release `buffers` until gradients come; `offloads`: gradients move to the host after every call."""
        self._buffers = buffers
        self._offloads = offloads
        self._kept = _HostSums(device)
        self._placed = False
        self._added = False
        buffers.release()

    def open(self) -> None:
        """Make sure that there are buffers to add gradients to."""
        if not self._placed:
            self._buffers.place()
            self._placed = True

    def added(self) -> None:
        """Note that gradients were added to the buffers."""
        self._added = True
        if self._offloads:
            self.keep()

    def keep(self) -> None:
        """Move all gradients to the host."""
        if self._added:
            self._kept.add(self._buffers.tensors)
        self._release()

    def collect(self) -> None:
        """Move all gradients into the buffers."""
        self.open()
        self._kept.add_to(self._buffers.tensors)
        self._kept.drop()
        self._added = True

    def drop(self) -> None:
        """Drop all gradients."""
        self._kept.drop()
        self._release()

    def difference(
        self, plain_pass: Callable[[], object], add_up: Callable[[Tensor], object], denominator: float
    ) -> float:
        """See `Trainer.compare`: `plain_pass` adds to zeroed buffers; `add_up` sums a tensor over the replicas."""
        self.keep()
        self.open()
        try:
            plain_pass()
            wanted = [gradient.to("cpu", copy=True) for gradient in self._summed(add_up)]
            for tensor in self._buffers.tensors:
                tensor.zero_()
            self._kept.add_to(self._buffers.tensors)
            pairs = zip(self._summed(add_up), wanted, strict=True)
            return max(relative_difference(actual, expected, denominator) for actual, expected in pairs)
        finally:
            self._release()

    def _summed(self, add_up: Callable[[Tensor], object]) -> Iterable[Tensor]:
        for tensor in self._buffers.tensors:
            add_up(tensor)
        return self._buffers.gradients

    def _release(self) -> None:
        self._buffers.release()
        self._placed = self._added = False


class _HostSums:
    """Sums of tensors on the host. The memory is kept from update to update, because pinning takes long."""

    def __init__(self, device: torch.device) -> None:
        self._memory = PinnedMemory(device)
        self._sums: list[Tensor] = []
        self._holds = False

    def add(self, tensors: Sequence[Tensor]) -> None:
        if not self._sums:
            self._sums = [self._memory.pin(torch.empty(tensor.shape, dtype=tensor.dtype)) for tensor in tensors]
        for kept, tensor in zip(self._sums, tensors, strict=True):
            if not self._holds:
                kept.copy_(tensor)
                continue
            for kept_part, part in zip(_parts(kept), _parts(tensor), strict=True):
                kept_part += part.to("cpu")
        self._holds = True

    def add_to(self, tensors: Sequence[Tensor]) -> None:
        if not self._holds:
            return
        for kept, tensor in zip(self._sums, tensors, strict=True):
            for kept_part, part in zip(_parts(kept), _parts(tensor), strict=True):
                part += kept_part.to(part.device)

    def drop(self) -> None:
        self._holds = False


def norm(values: Tensor) -> float:
    """Return the Euclidean norm of all values, computed in double precision."""
    parts = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in _parts(values.view(-1))]
    return torch.linalg.vector_norm(torch.stack(parts)).item()


def relative_difference(actual: Tensor, expected: Tensor, denominator: float) -> float:
    """Return the norm of the difference relative to that of `expected`, or to `denominator` if that is 0; never nan."""
    difference = norm(actual - expected.to(actual.device)) / (norm(expected) or denominator)
    return difference if math.isfinite(difference) else math.inf


def _parts(values: Tensor) -> tuple[Tensor, ...]:
    return torch.split(values, _VALUES_PER_PART)
