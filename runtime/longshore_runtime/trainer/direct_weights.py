"""Send weights directly from trainer ranks to engines: through shared memory, or by broadcast."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from longshore_runtime.backends.engine_protocol import Engine
from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.rollout.engine_replies import EngineLate, Reply
from longshore_runtime.rollout.published import PUBLISH_LIMIT_S, Delivered, Failure, Outcome, StoredWeights, failure
from longshore_runtime.rollout.remote_engine import EngineHandle
from longshore_runtime.trainer.sending import Sending
from longshore_runtime.weights.buckets import combined_checksum
from longshore_runtime.weights.shared import BucketPart, SharedBucket
from longshore_runtime.weights.slices import Checksum

_Replies = list[tuple[EngineHandle, Reply[Any]]]


@dataclass(frozen=True)
class Delivery:
    """Way in which published weights reach the engines."""

    is_direct: bool = False
    """Whether weights go directly from trainer to engine; otherwise through Ray's object store."""
    keeps_copies: bool = False
    """Whether direct delivery copies at once, because the trainer changes its weights before the round ends."""


class SendingTrainers(Protocol):
    """The part of the trainers that sends weights; all methods may raise TrainerLost."""

    def colocated_ranks(self, engine: EngineHandle) -> tuple[int, ...]:
        """Return the ranks on an engine's GPUs: one for each of its workers, one for all, or none."""

    def can_broadcast_to(self, engine: EngineHandle, readers: Collection[int]) -> bool:
        """Return whether the rank that broadcasts while these ranks are read shares no GPU with an engine."""

    def is_cut_alike(self, ranks: Sequence[int]) -> bool:
        """Return whether these ranks have the same parts of parameters as the workers of an engine of that size."""

    def begin_sending(self, readers: Collection[int], policy_version: int, *, in_pieces: bool = False) -> Sending:
        """Begin to write the weights of the ranks that are read, or of the first one if none is.

        Raises:
            WeightsUnavailable: they are of another version.
        """

    def begin_copies(self, policy_version: int) -> Callable[[], StoredWeights]:
        """Begin to copy the weights; the returned function raises WeightsUnavailable for another version."""


class DirectWeights:
    """Implement `PublishedWeights` without the object store.

    Engines with a rank on each of their GPUs read its memory, and one rank broadcasts to the others. Engines that share
    a GPU with that rank, and engines that join later, get copies.
    """

    def __init__(self, trainers: SendingTrainers, policy_version: int, *, keeps_copies: bool = False) -> None:
        """Describe the current weights of the trainers."""
        self.policy_version = policy_version
        self._trainers = trainers
        self._keeps_copies = keeps_copies
        self._lock = threading.Lock()
        self._begun: Callable[[], StoredWeights] | None = None
        """Function that waits for copies that have been begun."""
        self._made: StoredWeights | None = None

    def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
        """See `PublishedWeights`. Trainers free the GPU memory for sending before engines allocate their KV cache."""
        ranks = {engine: self._trainers.colocated_ranks(engine) for engine in engines}
        readers = {rank for own in ranks.values() for rank in own}
        direct = {
            engine: own for engine, own in ranks.items() if own or self._trainers.can_broadcast_to(engine, readers)
        }
        others = [engine for engine in engines if engine not in direct]
        try:
            receivers = self._send(direct, readers, delivered)
            # Copies are begun after sending, which has given back its buffers, and before any engine takes the memory
            # for its KV cache.
            if self._begun is None and (self._keeps_copies or others):
                self._begun = self._trainers.begin_copies(self.policy_version)
            copies = self.stored() if others else None
        except WeightsUnavailable as lost:
            return [(engine, lost) for engine in engines]
        receivers.serve(self.policy_version)
        return receivers.outcomes + (copies.deliver(others, delivered) if copies is not None else [])

    def stored(self) -> StoredWeights:
        """Return copies, which are made now unless they exist."""
        # Several engines may join at once, each in a thread of its own: the copies are collected once.
        with self._lock:
            if self._begun is not None and self._made is None:
                self._made = self._begun()
        return self._made or self._trainers.begin_copies(self.policy_version)()

    def _send(
        self, ranks: Mapping[EngineHandle, tuple[int, ...]], readers: Collection[int], delivered: Delivered
    ) -> "_Receivers":
        """Send the weights bucket by bucket: while engines load one, ranks write the next."""
        receivers = _Receivers(ranks, delivered)
        if not ranks:
            return receivers
        alike = [len(own) == one.num_workers and self._trainers.is_cut_alike(own) for one, own in ranks.items()]
        sending = self._trainers.begin_sending(readers, self.policy_version, in_pieces=all(alike))
        receivers.begin(sending)
        while (parts := sending.next()) is not None:
            # A rank has two buffers. It has filled one while engines loaded the other; they must let go of that one
            # before the next call of `next` overwrites it.
            receivers.await_loaded()
            receivers.load(parts)
            receivers.sent = sending.broadcast() if receivers.remote else None
        receivers.await_loaded()
        receivers.finish()
        sending.end()
        return receivers


class _Receivers:
    """Engines that load in step with each other; one that fails is left behind."""

    def __init__(self, ranks: Mapping[EngineHandle, tuple[int, ...]], delivered: Delivered) -> None:
        self._ranks = ranks
        self._delivered = delivered
        self._loading_bytes = 0
        self._failures: dict[EngineHandle, Failure | None] = dict.fromkeys(ranks)
        self._checksums: dict[EngineHandle, list[Mapping[str, Checksum]]] = {engine: [] for engine in ranks}
        """Checksums of what each engine was sent."""
        self._loading: _Replies = []
        self.sent: Callable[[], str | None] | None = None
        """Function that waits for a broadcast under way, and returns why it broke off, if it did."""

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self._failures.items())

    @property
    def remote(self) -> list[EngineHandle]:
        return [engine for engine in self._alive if not self._ranks[engine]]

    def begin(self, sending: Sending) -> None:
        """Wait until all are prepared, and those in other places have met the rank that broadcasts.

        Matrices are sent in bfloat16 where all engines hold them so: they would round in the same way.
        """
        num_remote_workers = sum(engine.num_workers for engine in self.remote)
        channel = sending.channel(num_remote_workers) if self.remote else None
        begun: list[tuple[EngineHandle, Reply[bool]]] = []
        first = 1
        for engine in self._alive:
            if self._ranks[engine] or channel is None:
                begun.append((engine, engine.command(Engine.begin_weights)))
            else:
                begun.append((engine, engine.command(Engine.begin_weights, replace(channel, first=first))))
                first += engine.num_workers
        # Workers of engines wait in `begin_weights` for this rank: it joins after all of them were asked, not before.
        if channel is not None and (reason := sending.join(channel)) is not None:
            self._lose_remote(reason, begun)
        self._await_all(begun)
        sending.in_bfloat16 = all(
            reply.get(PUBLISH_LIMIT_S) for engine, reply in begun if self._failures[engine] is None
        )

    def load(self, parts: Mapping[int, BucketPart]) -> None:
        """Have all engines load what ranks have written; does not wait."""
        part = next(iter(parts.values()))
        broadcast, self._loading_bytes = replace(part, buffer=None), part.num_bytes
        for engine in self._alive:
            bucket = SharedBucket(tuple(parts[rank] for rank in self._ranks[engine]) or (broadcast,))
            self._checksums[engine].append(bucket.checksums)
            self._loading.append((engine, engine.command(Engine.load_bucket, bucket)))

    def await_loaded(self) -> None:
        """Wait until all have loaded what they were given last."""
        if self.sent is not None and (reason := self.sent()) is not None:
            self._lose_remote(reason, self._loading)
        self.sent = None
        self._await_all(self._loading)
        self._loading = []
        self._delivered.num_bytes += self._loading_bytes
        self._loading_bytes = 0

    def finish(self) -> None:
        """Finish after the last bucket; return once no engine reads the trainers' memory any more."""
        finished = [(engine, engine.command(Engine.finish_weights)) for engine in self._alive]
        for engine, reply in finished:
            self._failures[engine] = failure(combined_checksum(self._checksums[engine]), reply)
            self._delivered.num_confirmed += self._failures[engine] is None

    def serve(self, policy_version: int) -> None:
        """Have the engines with the trainers' weights take requests."""
        self._await_all([(engine, engine.command(Engine.serve, policy_version)) for engine in self._alive])

    def _await_all(self, replies: _Replies) -> None:
        for engine, reply in replies:
            if self._failures[engine] is None:
                self._failures[engine] = _death(reply, PUBLISH_LIMIT_S)

    def _lose_remote(self, reason: str, replies: _Replies) -> None:
        """Give up all engines of a broadcast, because it cannot continue with one member less.

        An engine that died itself keeps its own reason, which says more.
        """
        failures = dict(replies)
        for engine in self.remote:
            death = _death(failures[engine], 0.0)
            is_own = death is not None and not isinstance(death, EngineLate)
            self._failures[engine] = (
                death if is_own else EngineDied(f"the broadcast of the weights broke off: {reason}")
            )

    @property
    def _alive(self) -> list[EngineHandle]:
        return [engine for engine, failure in self._failures.items() if failure is None]


def _death(reply: Reply[Any], timeout_s: float) -> EngineDied | None:
    try:
        reply.get(timeout_s)
    except EngineDied as death:
        return death
    return None
