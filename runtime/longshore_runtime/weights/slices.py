"""Parameters that are larger than a bucket travel in slices; checksums prove that all of them have come."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

_ALIGNMENT_BYTES: Final = 16
"""Slices begin at multiples of it, so that words of every size are whole, and GPUs read values where they like to."""
_WORD_BYTES: Final = 4


@dataclass(frozen=True)
class Checksum:
    """Of consecutive values of a parameter: two sums of words modulo 2^64, one of them weighted by position.

    Equal on every device, and however the parameter was cut. They tell mistakes, not forgeries, and cost a GPU next to
    nothing.
    """

    dtype: str
    """As torch and NumPy call it, without a prefix."""
    shape: tuple[int, ...]
    """Of the whole parameter."""
    start: int
    """The first of the values, as they lie in a row."""
    stop: int
    sums: tuple[tuple[int, int], ...]
    """Of each rank's part; one pair where the parameter is not cut by ranks."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all values."""
        return (self.start, self.stop) == (0, math.prod(self.shape))

    def __add__(self, following: "Checksum") -> "Checksum":
        """Of these values and those that follow upon them; raises ValueError for any others."""
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
    """In a row."""
    shape: tuple[int, ...]
    """Of the whole parameter."""
    start: int
    """The first of the values."""

    @property
    def nbytes(self) -> int:
        """As arrays call it."""
        return self.values.nbytes


Weights = Mapping[str, npt.NDArray[np.float32]]
"""Hugging Face parameter name -> values."""
Bucket = Mapping[str, npt.NDArray[np.float32] | Slice]
"""Some of the weights: Hugging Face parameter name -> values, or a slice of them."""


def bucket_size(max_bytes: int) -> int:
    """The largest size of a bucket up to `max_bytes` that a slice fills to the end, so that no other one follows it."""
    return max(1, max_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def spans(num_values: int, value_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """Where slices of a parameter begin and end; one that fits into a bucket of this `bucket_size` is whole."""
    step = bucket_bytes // value_bytes
    return [(start, min(start + step, num_values)) for start in range(0, max(1, num_values), step)]


def word_bytes(num_values: int, value_bytes: int) -> int:
    """Return the size of the words that the checksum of a parameter with this many values adds up."""
    return 1 if num_values * value_bytes % _WORD_BYTES else _WORD_BYTES


def modular(plain: int, weighted: int) -> tuple[int, int]:
    """Two sums as checksums have them."""
    return plain % 2**64, weighted % 2**64
