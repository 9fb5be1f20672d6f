"""Weights in buckets, so that nobody but Ray's object store, which spills, ever holds all of them beside the model.

In the store they are NumPy arrays, which it ships without a copy.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from longshore_runtime.types import Weights

MAX_BUCKET_BYTES: Final = 512 << 20


def buckets(
    named: Iterable[tuple[str, npt.NDArray[np.float32]]], max_bytes: int = MAX_BUCKET_BYTES
) -> Iterator[Weights]:
    """Gather parameters, in their order, into buckets of at most `max_bytes`; a larger one goes alone."""
    bucket: dict[str, npt.NDArray[np.float32]] = {}
    num_bytes = 0
    for name, values in named:
        if bucket and num_bytes + values.nbytes > max_bytes:
            yield bucket
            bucket, num_bytes = {}, 0
        bucket[name] = values
        num_bytes += values.nbytes
    if bucket:
        yield bucket


def checksums(bucket: Weights) -> dict[str, str]:
    """Of every parameter: `parameter_checksum`."""
    return {
        name: parameter_checksum(values.dtype.name, values.shape, *_sums(values)) for name, values in bucket.items()
    }


def parameter_checksum(dtype: str, shape: Sequence[int], plain: int, weighted: int) -> str:
    """Two sums of a parameter's words modulo 2^64, one of them weighted by position: equal on every device.

    They tell mistakes, not forgeries, and cost a GPU next to nothing. A word has 4 bytes, or 1 where 4 do not divide.
    """
    return f"{dtype} {tuple(shape)} {plain % 2**64:x} {weighted % 2**64:x}"


def combined_checksum(parts: Iterable[Mapping[str, str]]) -> str:
    """128 bits over the checksums of all parameters, however they came: what trainer and engines compare."""
    digest = hashlib.blake2b(digest_size=16)
    for name, checksum in sorted(item for part in parts for item in part.items()):
        digest.update(f"{name} {checksum}\n".encode())
    return digest.hexdigest()


class Receipt:
    """What an engine has loaded so far. Refuses parameters that the model lacks and those that came before."""

    def __init__(self, expected: Iterable[str] | None = None, optional: Iterable[str] = ()) -> None:
        """`expected`: parameters of the model (None: any); `optional`: those that may also come, or be missing."""
        self._optional = set(optional)
        self._expected = None if expected is None else set(expected) - self._optional
        self._checksums: dict[str, str] = {}

    def take(self, checksums: Mapping[str, str]) -> None:
        """The parameters of one more bucket; raises ValueError."""
        if repeated := sorted(self._checksums.keys() & checksums.keys()):
            raise ValueError(f"the published weights have {len(repeated)} parameters twice, first {repeated[0]!r}")
        if self._expected is not None and (unknown := sorted(checksums.keys() - self._expected - self._optional)):
            raise ValueError(f"the published weights have {len(unknown)} unknown parameters, first {unknown[0]!r}")
        self._checksums.update(checksums)

    def complete(self) -> str:
        """The combined checksum; raises ValueError if a parameter would stay at its old value."""
        if missing := sorted((self._expected or set()) - self._checksums.keys()):
            raise ValueError(f"the published weights lack {len(missing)} parameters of the model, first {missing[0]!r}")
        return combined_checksum([self._checksums])


_WORDS_PER_CHUNK: Final = 1 << 22


def _sums(values: npt.NDArray[np.float32]) -> tuple[int, int]:
    flat = np.ascontiguousarray(values).reshape(-1)
    words = flat.view(np.int32 if flat.nbytes % np.dtype(np.int32).itemsize == 0 else np.uint8)
    plain = weighted = 0
    for start in range(0, len(words), _WORDS_PER_CHUNK):
        chunk = words[start : start + _WORDS_PER_CHUNK].astype(np.int64)
        plain += int(chunk.sum())
        weighted += int(chunk @ np.arange(start + 1, start + 1 + len(chunk)))
    return plain, weighted
