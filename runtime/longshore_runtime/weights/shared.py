"""Descriptions of a bucket that a trainer rank wrote: where engines find it, in shared memory or by broadcast."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longshore_runtime.weights.slices import Checksum


@dataclass(frozen=True)
class BufferHandle:
    """Handle by which another process opens a shared buffer."""

    num_bytes: int
    file: str = ""
    """Path of the file in host memory, as long as its owner has it open; empty for a buffer on a GPU."""
    identity: tuple[int, int] = (0, 0)
    """Device and inode of that file: once its owner has closed it, the path may lead to another one."""
    cuda_ipc: bytes = b""
    """Pickled CUDA IPC handle of a buffer on a GPU; one process may open it, once."""


@dataclass(frozen=True)
class Slot:
    """Place of a parameter, or of a slice of one, in a buffer."""

    name: str
    offset_bytes: int
    num_bytes: int
    checksum: Checksum
    """Checksum of what was written, with type and shape."""
    cut: int | None = None
    """Dimension along which each rank has an equal part of the parameter; None if the parameter is whole."""


@dataclass(frozen=True)
class BucketPart:
    """The part of a bucket in the buffer of one rank."""

    buffer: BufferHandle | None
    """Buffer of the rank; None if the bucket is only broadcast."""
    slots: tuple[Slot, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffer that are in use."""
        return max((slot.offset_bytes + slot.num_bytes for slot in self.slots), default=0)


@dataclass(frozen=True)
class BroadcastGroup:
    """Address where the members of a broadcast meet: a trainer rank, which has rank 0, and workers of engines."""

    host: str
    port: int
    size: int
    first: int = 0
    """Rank of the engine's first worker; the others follow."""
    limit_s: float = 120.0
    """Time limit for meeting, and for one bucket. It can be short, because all members are there and idle."""


@dataclass(frozen=True)
class SharedBucket:
    """One bucket, as the workers of an engine read it."""

    parts: tuple[BucketPart, ...]
    """Parts of the bucket: one for each worker, in their order, or one for all of them."""

    def part(self, worker: int) -> BucketPart:
        """Return the part that a worker reads."""
        return self.parts[worker % len(self.parts)]

    @property
    def checksums(self) -> dict[str, Checksum]:
        """Checksum of every parameter (or slice) by its Hugging Face name, over all parts if ranks have parts of it."""
        return {slots[0].name: _combined(slots) for slots in zip(*(part.slots for part in self.parts), strict=True)}


def _combined(slots: Sequence[Slot]) -> Checksum:
    first, *others = [slot.checksum for slot in slots]
    assert len({slot.name for slot in slots}) == 1, "ranks of the trainer write in the same order"
    if slots[0].cut is None:
        assert all(other == first for other in others), "ranks of the trainer hold other weights"
        return first
    assert all(replace(other, sums=first.sums) == first for other in others), "ranks hold equal parts"
    return replace(first, sums=tuple(sums for slot in slots for sums in slot.checksum.sums))
