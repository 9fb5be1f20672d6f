"""What tells an engine where a bucket is that a rank of the trainer wrote: in memory that both see, or on its way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longshore_runtime.weights.slices import Checksum


@dataclass(frozen=True)
class BufferHandle:
    """What another process opens a shared buffer by."""

    num_bytes: int
    file: str = ""
    """In the host's memory; "": on a GPU."""
    cuda_ipc: bytes = b""
    """On a GPU: what CUDA needs, in a form that only processes with GPUs read. One process may open it, once."""


@dataclass(frozen=True)
class Slot:
    """Where a parameter, or a slice of one, lies in a buffer."""

    name: str
    offset_bytes: int
    num_bytes: int
    checksum: Checksum
    """Checksum of what was written, with type and shape."""
    cut: int | None = None
    """Dimension along which ranks have equal parts of the parameter, this one by its place; None: it is whole."""


@dataclass(frozen=True)
class BucketPart:
    """One bucket, in a buffer of one rank."""

    buffer: BufferHandle | None
    """None: it is only broadcast."""
    slots: tuple[Slot, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffer that are in use."""
        return max((slot.offset_bytes + slot.num_bytes for slot in self.slots), default=0)


@dataclass(frozen=True)
class BroadcastGroup:
    """Where the members of a broadcast meet: a rank of the trainer, which is 0, and workers of engines."""

    host: str
    port: int
    size: int
    first: int = 0
    """Of an engine's workers, which count on from there."""
    limit_s: float = 120.0
    """To meet, and to pass a bucket on: all members are there, and have nothing else to do."""


@dataclass(frozen=True)
class SharedBucket:
    """One bucket for the workers of an engine."""

    parts: tuple[BucketPart, ...]
    """One for each, in their order, or one for all."""

    def part(self, worker: int) -> BucketPart:
        """What a worker reads."""
        return self.parts[worker % len(self.parts)]

    @property
    def checksums(self) -> dict[str, Checksum]:
        """Of every parameter, or slice of one, by its Hugging Face name; of one that is cut, of all parts."""
        return {slots[0].name: _combined(slots) for slots in zip(*(part.slots for part in self.parts), strict=True)}


def _combined(slots: Sequence[Slot]) -> Checksum:
    first, *others = [slot.checksum for slot in slots]
    assert len({slot.name for slot in slots}) == 1, "ranks of the trainer write in the same order"
    if slots[0].cut is None:
        assert all(other == first for other in others), "ranks of the trainer hold other weights"
        return first
    assert all(replace(other, sums=first.sums) == first for other in others), "ranks hold equal parts"
    return replace(first, sums=tuple(sums for slot in slots for sums in slot.checksum.sums))
