"""Write the weights of a trainer rank, bucket by bucket, to memory that the engine on its GPU reads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from longshore_runtime.backends.broadcast import Broadcast
from longshore_runtime.backends.shared_buffer import SharedBuffer, free_gpu_memory
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart, Slot
from longshore_runtime.weights.slices import Checksum, bucket_size, modular, spans, word_bytes

Named = tuple[str, Tensor, int | None]
"""A parameter by its Hugging Face name, and the dimension along which ranks have parts of it; None: it is whole."""

_ALIGNMENT_BYTES: Final = 16
_WORDS_PER_CHUNK: Final = 1 << 22
"""Number of words that are summed at a time: a checksum takes a few times their memory."""


@dataclass(frozen=True)
class _Chunk:
    """Values that go into one bucket: a parameter, or a slice of one."""

    name: str
    values: Tensor
    """Values of the bucket in a row."""
    shape: tuple[int, ...]
    start: int
    cut: int | None


class WeightSender:
    """Writer of two buffers in turn: engines read one while the other is filled."""

    def __init__(
        self, tensors: Iterator[Named], device: torch.device, max_bucket_bytes: int, *, is_read: bool = True
    ) -> None:
        """Prepare two buffers of `max_bucket_bytes` together; a parameter that exceeds one of them is cut into slices.

        `is_read`: an engine reads them; otherwise they are only broadcast.
        """
        self._is_read = is_read
        self._size_bytes = bucket_size(max_bucket_bytes // 2)
        self._tensors = tensors
        self._chunks: Iterator[_Chunk] | None = None
        self._device = device
        self._buffers: list[SharedBuffer] = []
        self._following: _Chunk | None = None
        self._part: BucketPart | None = None
        self._broadcast: Broadcast | None = None

    def join(self, channel: BroadcastGroup) -> None:
        """Join a broadcast to engines in other pods, as rank 0; raises RuntimeError if one does not come."""
        self._broadcast = Broadcast(channel, 0, self._device)

    def broadcast(self) -> None:
        """Broadcast the newest bucket."""
        assert self._broadcast is not None and self._part is not None, "join and fill come first"
        self._broadcast.run(self._buffers[-1].values[: self._part.num_bytes])

    def fill(self, *, in_bfloat16: bool = False) -> BucketPart | None:
        """Write the next bucket and return it, or None after the last. This overwrites the one before the previous.

        `in_bfloat16`: whether matrices are rounded to that type. The first call decides.
        """
        if self._chunks is None:
            self._chunks = _chunks(self._tensors, self._size_bytes, in_bfloat16=in_bfloat16)
        self._following = self._following or next(self._chunks, None)
        if self._following is None:
            return None
        buffer = self._next_buffer()
        slots: list[Slot] = []
        offset_bytes = 0
        while self._following is not None and offset_bytes + self._following.values.nbytes <= self._size_bytes:
            slots.append(_write(self._following, buffer.values, offset_bytes))
            offset_bytes += -(-slots[-1].num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            self._following = None  # before the next one is gathered
            self._following = next(self._chunks, None)
        self._part = BucketPart(buffer.handle, tuple(slots))
        return self._part

    def close(self) -> None:
        """Free the memory, which engines must have released."""
        self._broadcast = self._following = None
        self._tensors = self._chunks = iter(())
        while self._buffers:
            self._buffers.pop().close()
        free_gpu_memory()

    def _next_buffer(self) -> SharedBuffer:
        """Return the buffer that was not filled last."""
        if len(self._buffers) == 2:
            self._buffers.append(self._buffers.pop(0))
        else:
            self._buffers.append(SharedBuffer(self._size_bytes, self._device, is_read=self._is_read))
        return self._buffers[-1]


def _chunks(tensors: Iterator[Named], bucket_bytes: int, *, in_bfloat16: bool) -> Iterator[_Chunk]:
    for name, values, cut in tensors:
        shape, flat = tuple(values.shape), values.reshape(-1)
        # Vectors are small, and engines may hold some in float32, such as the biases of routers.
        if in_bfloat16 and flat.is_floating_point() and len(shape) > 1:
            flat = flat.to(torch.bfloat16)
        del values
        for start, stop in spans(len(flat), flat.element_size(), bucket_bytes):
            yield _Chunk(name, flat[start:stop], shape, start, cut)
        del flat  # before the next one is gathered


def _write(chunk: _Chunk, buffer: Tensor, offset_bytes: int) -> Slot:
    num_bytes = chunk.values.nbytes
    target = buffer[offset_bytes : offset_bytes + num_bytes].view(chunk.values.dtype)
    target.copy_(chunk.values)
    # Reading the checksum waits until a GPU has written the values.
    checksum = tensor_checksum(target, chunk.shape, chunk.start)
    return Slot(chunk.name, offset_bytes, num_bytes, checksum, chunk.cut)


def receive(part: BucketPart, broadcast: Broadcast, device: torch.device) -> Tensor:
    """Return a buffer with a bucket that is received by broadcast."""
    buffer = torch.empty(part.num_bytes, dtype=torch.uint8, device=device)
    broadcast.run(buffer)
    return buffer


def read(part: BucketPart, buffer: Tensor) -> Iterator[tuple[Slot, Tensor]]:
    """Yield a flat copy of the values in each slot of a bucket; raises ValueError for a wrong checksum."""
    for slot in part.slots:
        written = slot.checksum
        bytes_ = buffer[slot.offset_bytes : slot.offset_bytes + slot.num_bytes]
        values = bytes_.view(getattr(torch, written.dtype)).clone()
        if tensor_checksum(values, written.shape, written.start) != written:
            raise ValueError(f"the shared weights hold other values of {slot.name!r} than were written")
        yield slot, values


class Assembly:
    """Slices of parameters, until these are complete. A `Receipt` checks that none is left out."""

    def __init__(self) -> None:
        self._incomplete: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor, shape: tuple[int, ...], start: int) -> Tensor | None:
        """Add values; return the parameter if they complete it."""
        num_values, stop = math.prod(shape), start + values.numel()
        if values.numel() == num_values:
            return values.reshape(shape)
        if start == 0:
            self._incomplete[name] = values.new_empty(num_values)
        self._incomplete[name][start:stop] = values
        return self._incomplete.pop(name).reshape(shape) if stop == num_values else None


@torch.no_grad()
def tensor_checksum(values: Tensor, shape: tuple[int, ...], start: int = 0) -> Checksum:
    """Compute the checksum of flat values that begin at index `start` of a parameter of this shape."""
    size_bytes = word_bytes(math.prod(shape), values.element_size())
    words = values.view(torch.uint8)
    words = words if size_bytes == 1 else words.view(torch.int32)
    sums = torch.zeros(2, dtype=torch.int64, device=values.device)
    first = start * values.element_size() // size_bytes + 1
    for begin in range(0, len(words), _WORDS_PER_CHUNK):
        chunk = words[begin : begin + _WORDS_PER_CHUNK].to(torch.int64)
        sums[0] += chunk.sum()
        places = torch.arange(first + begin, first + begin + len(chunk), device=values.device)
        sums[1] += (chunk * places).sum()
    plain, weighted = sums.tolist()
    dtype = str(values.dtype).removeprefix("torch.")
    return Checksum(dtype, shape, start, start + len(values), (modular(plain, weighted),))
