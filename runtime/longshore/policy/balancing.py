"""Even shares of unequal pieces: longest first, each to the worker with the least so far (Graham's LPT rule)."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Shares(Generic[T]):
    """Shares of work that each worker gets."""

    pieces: Mapping[int, list[T]]
    """Longest first."""
    load: Mapping[int, float]
    """Load that each worker has then, in the order of the workers."""


def balance(pieces: Iterable[T], size: Callable[[T], float], load: Mapping[int, float]) -> Shares[T]:
    """Give every piece to one of the workers in `load` (worker -> what it has already).

    A worker that was given anything is ahead of no other by more than the smallest piece it got. Ties go to the earlier
    piece and the lower worker.
    """
    assert load, "there is no worker"
    shares: dict[int, list[T]] = {worker: [] for worker in sorted(load)}
    heap = [(before, worker) for worker, before in load.items()]
    heapq.heapify(heap)
    for piece in sorted(pieces, key=size, reverse=True):
        before, worker = heap[0]
        shares[worker].append(piece)
        heapq.heapreplace(heap, (before + size(piece), worker))
    after = {worker: total for total, worker in heap}
    return Shares(shares, {worker: after[worker] for worker in load})
