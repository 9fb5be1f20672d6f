"""A rank of the trainer writes its weights where the engine on its GPU reads them, bucket by bucket."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from longshore_runtime.backends.broadcast import Broadcast
from longshore_runtime.backends.shared_buffer import SharedBuffer
from longshore_runtime.weights.buckets import parameter_checksum
from longshore_runtime.weights.shared import Channel, Part, Slot

Named = tuple[str, Tensor, int | None]
"""A parameter by its Hugging Face name, and the dimension along which ranks have parts of it; None: it is whole."""

_ALIGNMENT_BYTES: Final = 16
_WORDS_PER_CHUNK: Final = 1 << 22
"""A checksum takes a few times the memory of so many words."""


class WeightSender:
    """Fills two buffers by turns: engines read one of them meanwhile."""

    def __init__(self, tensors: Iterator[Named], device: torch.device, max_bucket_bytes: int) -> None:
        """`max_bucket_bytes`: of both buffers together; a parameter that exceeds its half gets a buffer of its own."""
        self._tensors = tensors
        self._device = device
        self._size_bytes = max_bucket_bytes // 2
        self._buffers: list[SharedBuffer] = []
        self._following: Named | None = None
        self._part: Part | None = None
        self._broadcast: Broadcast | None = None

    def join(self, channel: Channel) -> None:
        """Meet engines in other pods, as rank 0; raises RuntimeError when one does not come."""
        self._broadcast = Broadcast(channel, 0, self._device)

    def broadcast(self) -> None:
        """Send them the newest bucket."""
        assert self._broadcast is not None and self._part is not None, "join and fill come first"
        self._broadcast.run(self._buffers[-1].values[: self._part.num_bytes])

    def fill(self) -> Part | None:
        """The next bucket; None: there is no more. It overwrites the last but one."""
        following = self._following or next(self._tensors, None)
        if following is None:
            return None
        buffer = self._buffer(following[1].nbytes)
        slots: list[Slot] = []
        offset_bytes = 0
        while following is not None and offset_bytes + following[1].nbytes <= buffer.handle.num_bytes:
            name, values, cut = following
            target = buffer.values[offset_bytes : offset_bytes + values.nbytes].view(values.dtype).view(values.shape)
            target.copy_(values)
            # Reading the checksum waits until a GPU has written the values.
            slots.append(_slot(name, target, offset_bytes, cut))
            offset_bytes += -(-values.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            following = next(self._tensors, None)
        self._following = following
        self._part = Part(buffer.handle, tuple(slots))
        return self._part

    def close(self) -> None:
        """Give the buffers back."""
        self._broadcast = None
        while self._buffers:
            self._buffers.pop().close()

    def _buffer(self, num_bytes: int) -> SharedBuffer:
        """The one that was filled before last, if it is large enough."""
        oldest = self._buffers.pop(0) if len(self._buffers) == 2 else None
        if oldest is not None and oldest.handle.num_bytes < num_bytes:
            oldest.close()
            oldest = None
        self._buffers.append(oldest or SharedBuffer(max(num_bytes, self._size_bytes), self._device))
        return self._buffers[-1]


def compute_device() -> torch.device:
    """Where trainers compute."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def receive(part: Part, broadcast: Broadcast, device: torch.device) -> Tensor:
    """A buffer with a bucket that is broadcast."""
    buffer = torch.empty(part.num_bytes, dtype=torch.uint8, device=device)
    broadcast.run(buffer)
    return buffer


def read(part: Part, buffer: Tensor) -> Iterator[Named]:
    """The parameters of a bucket, copied; raises ValueError for one that is not what was written."""
    for slot in part.slots:
        bytes_ = buffer[slot.offset_bytes : slot.offset_bytes + slot.num_bytes]
        values = bytes_.view(getattr(torch, slot.dtype)).view(slot.shape).clone()
        if tensor_checksum(values) != slot.checksum:
            raise ValueError(f"the shared weights hold other values of {slot.name!r} than were written")
        yield slot.name, values, slot.cut


@torch.no_grad()
def tensor_checksum(values: Tensor) -> str:
    """See `buckets.parameter_checksum`."""
    return parameter_checksum(_dtype_name(values), values.shape, *_sums(values.reshape(-1).view(torch.uint8)))


def _slot(name: str, values: Tensor, offset_bytes: int, cut: int | None) -> Slot:
    shape, checksum = tuple(values.shape), tensor_checksum(values)
    return Slot(name, _dtype_name(values), shape, offset_bytes, values.nbytes, checksum, cut)


def _dtype_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _sums(values: Tensor) -> tuple[int, int]:
    words = values.view(torch.int32) if len(values) % torch.int32.itemsize == 0 else values
    sums = torch.zeros(2, dtype=torch.int64, device=values.device)
    for start in range(0, len(words), _WORDS_PER_CHUNK):
        chunk = words[start : start + _WORDS_PER_CHUNK].to(torch.int64)
        sums[0] += chunk.sum()
        sums[1] += (chunk * torch.arange(start + 1, start + 1 + len(chunk), device=values.device)).sum()
    plain, weighted = sums.tolist()
    return plain, weighted
