"""Ranks of the trainer while they write their weights, bucket by bucket; the first one also broadcasts them."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import ray

from longshore_runtime.errors import TrainerLost
from longshore_runtime.trainer.failures import cause, lost_peer
from longshore_runtime.weights.shared import BroadcastGroup, BucketPart

_LIMIT_S: Final = 600.0
"""Seconds for a call of a rank; a member that is late gives up long before."""

Get = Callable[[Sequence[Any]], list[Any]]
"""Function that waits for answers of ranks; raises TrainerLost, or what a rank raised."""


class Sending:
    """All ranks of some replicas, which gather together; those that engines read from are asked for what they wrote."""

    def __init__(self, actors: Mapping[int, Any], readers: Collection[int], get: Get, in_order: threading.Lock) -> None:
        """Take the ranks; `readers`: ranks that engines read from; `in_order` is held while all ranks are called."""
        self._actors = actors
        self._readers = readers
        self._get = get
        self._in_order = in_order
        self._first = next(iter(actors.values()))
        self.in_bfloat16 = False
        """Whether matrices are written in bfloat16; otherwise as the ranks hold them."""

    def begin(self, max_bucket_bytes: int, policy_version: int, *, in_pieces: bool) -> None:
        """Begin to write the weights; raises WeightsUnavailable if they are of another version by now."""
        with self._in_order:
            begun = [
                actor.begin_sending.remote(max_bucket_bytes, policy_version, in_pieces, rank in self._readers)
                for rank, actor in self._actors.items()
            ]
        self._get(begun)

    def channel(self, num_workers: int) -> BroadcastGroup:
        """Return where so many workers of engines can meet the first rank."""
        ((host, port),) = self._get([self._first.rendezvous.remote()])
        return BroadcastGroup(host, port, num_workers + 1)

    def join(self, channel: BroadcastGroup) -> str | None:
        """Meet the workers of engines; return why not all have come, or None."""
        return self._lost_peer(self._first.join_engines.remote(channel))

    def next(self) -> Mapping[int, BucketPart] | None:
        """Return what the ranks that are read have written, or the first one; None: there is no more.

        A rank has two buffers, so this bucket overwrites the last but one.
        """
        with self._in_order:
            filled = [actor.fill.remote(self.in_bfloat16) for actor in self._actors.values()]
        parts = self._get(filled)
        assert all(parts) or not any(parts), "the replicas hold other parameters"
        written = dict(zip(self._actors, parts, strict=True))
        return {rank: written[rank] for rank in self._readers or [next(iter(written))]} if all(parts) else None

    def broadcast(self) -> Callable[[], str | None]:
        """Begin to send what the first rank has written; the returned function waits, and says why not all got it."""
        sent = self._first.broadcast.remote()
        return lambda: self._lost_peer(sent)

    def end(self) -> None:
        """Give the memory back, on GPUs to other processes: readers have let go of it."""
        # Ranks keep the memory mapped until then: an engine may still copy from it.
        self._get([actor.end_sending.remote() for actor in self._actors.values()])

    def _lost_peer(self, answer: Any) -> str | None:
        """Wait for the rank; return why its peers are gone, if they are. The rank survives that. All else is raised."""
        try:
            ray.get(answer, timeout=_LIMIT_S)
        except ray.exceptions.RayTaskError as error:
            if (reason := lost_peer(error)) is None:
                raise cause(error) from error
            return reason
        except ray.exceptions.RayError as error:
            raise TrainerLost(f"a trainer replica is gone ({type(error).__name__})") from error
        return None
