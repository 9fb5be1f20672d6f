"""Weights on their way from trainer to engines: NumPy arrays, which Ray's object store ships without a copy."""

import hashlib
from collections.abc import Iterable

import numpy as np

from longshore_runtime.types import Weights


def checksum(weights: Weights) -> str:
    """128 bits over names, shapes, types and values, independent of the order of the mapping."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        values = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.data.cast("B"))
    return digest.hexdigest()


def require_same_names(published: Iterable[str], expected: Iterable[str]) -> None:
    """Refuse weights that would leave a parameter at its old value, or that belong to another model."""
    published_names, expected_names = set(published), set(expected)
    if missing := sorted(expected_names - published_names):
        raise ValueError(f"the published weights lack {len(missing)} parameters of the model, first {missing[0]!r}")
    if unknown := sorted(published_names - expected_names):
        raise ValueError(f"the published weights have {len(unknown)} unknown parameters, first {unknown[0]!r}")
