"""Weights on their way from trainer to engines: NumPy arrays, which Ray's object store ships without a copy.

They travel in buckets, so that nobody but the object store, which spills, ever holds all of them beside the model.
"""

import hashlib
from collections.abc import Iterable, Iterator
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


def checksum(bucket: Weights) -> str:
    """128 bits over names, shapes, types and values, independent of the order of the mapping."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(bucket):
        values = np.ascontiguousarray(bucket[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.data.cast("B"))
    return digest.hexdigest()


def combined_checksum(checksums: Iterable[str]) -> str:
    """128 bits over the checksums of all buckets, in their order: what trainer and engines compare."""
    return hashlib.blake2b(" ".join(checksums).encode(), digest_size=16).hexdigest()


class Receipt:
    """What an engine has loaded so far. Refuses parameters that the model lacks and those that came before."""

    def __init__(self, expected: Iterable[str] | None = None, optional: Iterable[str] = ()) -> None:
        """`expected`: parameters of the model (None: any); `optional`: those that may also come, or be missing."""
        self._optional = set(optional)
        self._expected = None if expected is None else set(expected) - self._optional
        self._names: set[str] = set()
        self._checksums: list[str] = []

    def take(self, bucket: Weights) -> None:
        """One more bucket; raises ValueError."""
        if repeated := sorted(self._names & set(bucket)):
            raise ValueError(f"the published weights have {len(repeated)} parameters twice, first {repeated[0]!r}")
        if self._expected is not None and (unknown := sorted(set(bucket) - self._expected - self._optional)):
            raise ValueError(f"the published weights have {len(unknown)} unknown parameters, first {unknown[0]!r}")
        self._names.update(bucket)
        self._checksums.append(checksum(bucket))

    def complete(self) -> str:
        """The combined checksum; raises ValueError if a parameter would stay at its old value."""
        if missing := sorted((self._expected or set()) - self._names):
            raise ValueError(f"the published weights lack {len(missing)} parameters of the model, first {missing[0]!r}")
        return combined_checksum(self._checksums)
