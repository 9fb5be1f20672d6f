"""Weights that ranks of the trainer give to the engines on their GPUs, through memory that both see."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_actor import EngineDied, WeightsGone
from longshore_runtime.rollout.engine_handle import EngineHandle, Reply
from longshore_runtime.rollout.published import PUBLISH_LIMIT_S, Failure, Outcome, StoredWeights, failure
from longshore_runtime.weights.buckets import combined_checksum
from longshore_runtime.weights.shared import Part, SharedBucket

T = TypeVar("T")


class SendingTrainers(Protocol):
    """The trainers as far as they send weights; what is raised is TrainerLost."""

    def beside(self, place: Place) -> tuple[int, ...]:
        """The rank on each GPU of an engine (without GPUs: one in its pod); none unless there is one on each."""

    def sending(
        self, ranks: Collection[int], policy_version: int
    ) -> contextlib.AbstractContextManager[Iterator[Mapping[int, Part]]]:
        """The buckets of these ranks, one after the other; the next but one overwrites each. Raises WeightsGone."""

    def stored_weights(self, policy_version: int) -> StoredWeights:
        """Copies of the weights; raises WeightsGone when they have changed since this version."""


@dataclass(frozen=True)
class Delivery:
    """How published weights reach the engines."""

    is_direct: bool = False
    """Through memory that trainer and engine share; otherwise through Ray's object store."""
    keeps_copies: bool = False
    """Direct: copies are made beforehand, since the trainer goes on before the round ends."""


@dataclass(frozen=True, eq=False)
class DirectWeights:
    """Implements `PublishedWeights`. Engines on GPUs without a rank of the trainer are given copies."""

    trainers: SendingTrainers
    policy_version: int
    copies: StoredWeights | None = None

    def deliver(self, engines: Sequence[EngineHandle]) -> list[Outcome]:
        """Bucket by bucket: while engines load one, the next is written."""
        ranks = {engine: self.trainers.beside(engine.place) for engine in engines}
        direct = {engine: beside for engine, beside in ranks.items() if beside}
        others = [engine for engine in engines if engine not in direct]
        sent = self._send(direct) if direct else []
        return [*sent, *(self.stored().deliver(others) if others else [])]

    def stored(self) -> StoredWeights:
        """Made now, unless they were beforehand."""
        return self.copies or self.trainers.stored_weights(self.policy_version)

    def _send(self, ranks: Mapping[EngineHandle, tuple[int, ...]]) -> list[Outcome]:
        receivers = _Receivers(list(ranks))
        receivers.await_all(receivers.ask(lambda engine: engine.begin_weights()))
        sent = []
        try:
            with self.trainers.sending({rank for own in ranks.values() for rank in own}, self.policy_version) as parts:
                bucket = next(parts, None)
                while bucket is not None:
                    sent.append(SharedBucket(tuple(bucket.values())).checksums)
                    replies = receivers.ask(_load(bucket, ranks))
                    bucket = next(parts, None)
                    receivers.await_all(replies)
        except WeightsGone as failure:
            return [(engine, failure) for engine in ranks]
        ended = receivers.ask(lambda engine: engine.end_weights(self.policy_version))
        receivers.expect(combined_checksum(sent), ended)
        return receivers.outcomes


def _load(
    bucket: Mapping[int, Part], ranks: Mapping[EngineHandle, tuple[int, ...]]
) -> Callable[[EngineHandle], Reply[None]]:
    return lambda engine: engine.load_bucket(SharedBucket(tuple(bucket[rank] for rank in ranks[engine])))


class _Receivers:
    """Engines that load in step with each other; one that fails is left behind."""

    def __init__(self, engines: list[EngineHandle]) -> None:
        self._failures: dict[EngineHandle, Failure | None] = dict.fromkeys(engines)

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self._failures.items())

    def ask(self, call: Callable[[EngineHandle], Reply[T]]) -> list[tuple[EngineHandle, Reply[T]]]:
        return [(engine, call(engine)) for engine, failure in self._failures.items() if failure is None]

    def await_all(self, replies: list[tuple[EngineHandle, Reply[None]]]) -> None:
        for engine, reply in replies:
            try:
                reply.get(PUBLISH_LIMIT_S)
            except EngineDied as death:
                self._failures[engine] = death

    def expect(self, checksum: str, replies: list[tuple[EngineHandle, Reply[str]]]) -> None:
        for engine, reply in replies:
            self._failures[engine] = failure(checksum, reply)
