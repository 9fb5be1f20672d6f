"""Parameters larger than a bucket are sent in slices; checksums prove that all values have arrived."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

_ALIGNMENT_BYTES: Final = 16
"""Bytes at whose multiples slices begin, so that they consist of whole words and GPUs read them aligned."""
_WORD_BYTES: Final = 4


@dataclass(frozen=True)
class Checksum:
    """Checksum of consecutive values of a parameter: two sums of words modulo 2^64, one weighted by position.

    It is equal on every device, however the parameter was cut. It detects mistakes, not forgeries, and costs a GPU
    almost nothing.
    """

    dtype: str
    """Name of the type in torch and NumPy, without a prefix."""
    shape: tuple[int, ...]
    """Shape of the whole parameter."""
    start: int
    """Index of the first value in the flattened parameter."""
    stop: int
    sums: tuple[tuple[int, int], ...]
    """Sums: a pair for each rank's part; one pair if ranks do not cut the parameter."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all values."""
        return (self.start, self.stop) == (0, math.prod(self.shape))

    def __add__(self, following: "Checksum") -> "Checksum":
        """Return the checksum of both parts; raise ValueError unless `following` follows directly."""
        if following != replace(following, dtype=self.dtype, shape=self.shape, start=self.stop):
            raise ValueError("slices of a parameter do not follow upon each other")
        sums = tuple(
            modular(one[0] + other[0], one[1] + other[1]) for one, other in zip(self.sums, following.sums, strict=True)
        )
        return replace(self, stop=following.stop, sums=sums)


@dataclass(frozen=True, eq=False)
class Slice:
    """Consecutive values of a parameter that is larger than a bucket."""

    values: npt.NDArray[np.float32]
    """Values as a flat array."""
    shape: tuple[int, ...]
    """Shape of the whole parameter."""
    start: int
    """Index of the first value in the flattened parameter."""

    @property
    def nbytes(self) -> int:
        """Size in bytes, under the name that arrays use."""
        return self.values.nbytes


Weights = Mapping[str, npt.NDArray[np.float32]]
"""Values by Hugging Face parameter name."""
Bucket = Mapping[str, npt.NDArray[np.float32] | Slice]
"""Values of some parameters, or slices of them, by Hugging Face parameter name."""


def bucket_size(max_bytes: int) -> int:
    """Return the largest multiple of the alignment up to `max_bytes`, which a slice can fill completely."""
    return max(1, max_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def spans(num_values: int, value_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """Return (start, stop) of the slices of a parameter; one span if it fits into a bucket of `bucket_bytes`."""
    step = bucket_bytes // value_bytes
    return [(start, min(start + step, num_values)) for start in range(0, max(1, num_values), step)]


def word_bytes(num_values: int, value_bytes: int) -> int:
    """Return the size of the words that the checksum of a parameter with this many values adds up."""
    return 1 if num_values * value_bytes % _WORD_BYTES else _WORD_BYTES


def modular(plain: int, weighted: int) -> tuple[int, int]:
    """Reduce two sums modulo 2^64."""
    return plain % 2**64, weighted % 2**64
