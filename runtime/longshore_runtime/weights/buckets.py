"""Gather weights into buckets, so that only Ray's object store, which can spill, holds a second copy of all of them.

Buckets are NumPy arrays, which the store transfers without a copy.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from longshore_runtime.weights.slices import Bucket, Checksum, Slice, bucket_size, modular, spans, word_bytes

MAX_BUCKET_BYTES: Final = 512 << 20


def buckets(
    named: Iterable[tuple[str, npt.NDArray[np.float32]]], max_bytes: int = MAX_BUCKET_BYTES
) -> Iterator[Bucket]:
    """Gather parameters in their order into buckets of at most `max_bytes`; larger parameters are cut into slices."""
    bucket: dict[str, npt.NDArray[np.float32] | Slice] = {}
    num_bytes = 0
    size_bytes = bucket_size(max_bytes)
    for name, values in _sliced(named, size_bytes):
        if bucket and num_bytes + values.nbytes > size_bytes:
            yield bucket
            bucket, num_bytes = {}, 0
        bucket[name] = values
        num_bytes += values.nbytes
    if bucket:
        yield bucket


def _sliced(
    named: Iterable[tuple[str, npt.NDArray[np.float32]]], bucket_bytes: int
) -> Iterator[tuple[str, npt.NDArray[np.float32] | Slice]]:
    for name, values in named:
        places = spans(values.size, values.itemsize, bucket_bytes)
        if len(places) == 1:
            yield name, values
            continue
        flat = np.ascontiguousarray(values).reshape(-1)
        for start, stop in places:
            yield name, Slice(flat[start:stop], values.shape, start)


def checksums(bucket: Bucket) -> dict[str, Checksum]:
    """Return the checksum of every parameter, or slice of one, in a bucket."""
    return {
        name: _checksum(values.values, values.shape, values.start)
        if isinstance(values, Slice)
        else _checksum(values, values.shape)
        for name, values in bucket.items()
    }


def combined_checksum(parts: Iterable[Mapping[str, Checksum]]) -> str:
    """Hash all checksums to 128 bits, equal however parameters were cut; trainers and engines compare it."""
    total: dict[str, Checksum] = {}
    for part in parts:
        for name, checksum in part.items():
            total[name] = total[name] + checksum if name in total else checksum
    digest = hashlib.blake2b(digest_size=16)
    for name, checksum in sorted(total.items()):
        digest.update(f"{name} {checksum}\n".encode())
    return digest.hexdigest()


class Receipt:
    """Check what an engine loads: it refuses parameters that the model lacks, and values that came before.

    Slices of a parameter must come in their order, without gaps.
    """

    def __init__(self, expected: Iterable[str] | None = None, optional: Iterable[str] = ()) -> None:
        """Expect parameters of the model (None: any); `optional`: those that may also come, or be missing."""
        self._optional = set(optional)
        self._expected = None if expected is None else set(expected) - self._optional
        self._taken: dict[str, Checksum] = {}

    def take(self, checksums: Mapping[str, Checksum]) -> None:
        """Take the parameters of a bucket; raise ValueError for unknown, repeated or missing ones."""
        if repeated := sorted(name for name, one in checksums.items() if self._repeats(name, one)):
            raise ValueError(f"the published weights have {len(repeated)} parameters twice, first {repeated[0]!r}")
        if self._expected is not None and (unknown := sorted(checksums.keys() - self._expected - self._optional)):
            raise ValueError(f"the published weights have {len(unknown)} unknown parameters, first {unknown[0]!r}")
        _require_all_values(name for name, one in checksums.items() if one.start > self._num_taken(name))
        for name, one in checksums.items():
            self._taken[name] = self._taken[name] + one if name in self._taken else one

    def complete(self) -> str:
        """Return the combined checksum; raise ValueError if a value of the model did not come."""
        if missing := sorted((self._expected or set()) - self._taken.keys()):
            raise ValueError(f"the published weights lack {len(missing)} parameters of the model, first {missing[0]!r}")
        _require_all_values(name for name, one in self._taken.items() if not one.is_whole)
        return combined_checksum([self._taken])

    def _repeats(self, name: str, one: Checksum) -> bool:
        taken = self._taken.get(name)
        return taken is not None and (taken.is_whole or one.start < taken.stop)

    def _num_taken(self, name: str) -> int:
        taken = self._taken.get(name)
        return 0 if taken is None else taken.stop


def _require_all_values(lacking: Iterable[str]) -> None:
    if names := sorted(lacking):
        raise ValueError(f"the published weights lack values of {len(names)} parameters, first {names[0]!r}")


_WORDS_PER_CHUNK: Final = 1 << 22


def _checksum(values: npt.NDArray[np.float32], shape: tuple[int, ...], start: int = 0) -> Checksum:
    size_bytes = word_bytes(int(np.prod(shape)), values.itemsize)
    words = np.ascontiguousarray(values).reshape(-1).view(np.uint8 if size_bytes == 1 else np.int32)
    first = start * values.itemsize // size_bytes + 1
    plain = weighted = 0
    for begin in range(0, len(words), _WORDS_PER_CHUNK):
        chunk = words[begin : begin + _WORDS_PER_CHUNK].astype(np.int64)
        plain += int(chunk.sum())
        weighted += int(chunk @ np.arange(first + begin, first + begin + len(chunk)))
    return Checksum(values.dtype.name, shape, start, start + values.size, (modular(plain, weighted),))
