"""Weights that go straight from ranks of the trainer to engines: through memory that both see, or by broadcast."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from longshore_runtime.errors import EngineDied, WeightsGone
from longshore_runtime.rollout.engine_handle import EngineHandle, Reply
from longshore_runtime.rollout.published import PUBLISH_LIMIT_S, Failure, Outcome, StoredWeights, failure
from longshore_runtime.trainer.sending import Sending
from longshore_runtime.weights.buckets import combined_checksum
from longshore_runtime.weights.shared import Channel, Part, SharedBucket

T = TypeVar("T")

_BROKEN = EngineDied("the broadcast of the weights broke off")


@dataclass(frozen=True)
class Delivery:
    """How published weights reach the engines."""

    is_direct: bool = False
    """From trainer to engine; otherwise through Ray's object store."""
    keeps_copies: bool = False
    """Direct: copies are made at once, since the trainer goes on before the round ends."""


class SendingTrainers(Protocol):
    """The trainers as far as they send weights; they may raise TrainerLost."""

    def beside(self, engine: EngineHandle) -> tuple[int, ...]:
        """The ranks on the GPUs of an engine, one for each of its workers or one for all; none: they are elsewhere."""

    def is_cut_alike(self, ranks: Sequence[int]) -> bool:
        """Whether these ranks have the parts of every parameter that as many workers of an engine have."""

    def begin_sending(self, readers: Collection[int], policy_version: int, *, in_pieces: bool = False) -> Sending:
        """Have ranks write their weights; raises WeightsGone when they are of another version."""

    def begin_copies(self, policy_version: int) -> Callable[[], StoredWeights]:
        """Have copies of the weights made; the answer raises WeightsGone when they were of another version."""


class DirectWeights:
    """Implements `PublishedWeights`. Engines with a rank on each of their GPUs read its memory; the first rank
    broadcasts to the others. Those that come later are given copies.
    """

    def __init__(self, trainers: SendingTrainers, policy_version: int, *, keeps_copies: bool = False) -> None:
        """The current weights of the trainers."""
        self.policy_version = policy_version
        self._trainers = trainers
        self._keeps_copies = keeps_copies
        self._copies: Callable[[], StoredWeights] | None = None

    def deliver(self, engines: Sequence[EngineHandle]) -> list[Outcome]:
        """Bucket by bucket: while engines load one, the next is written."""
        ranks = {engine: self._trainers.beside(engine) for engine in engines}
        receivers = _Receivers(ranks)
        alike = [len(own) == one.num_workers and self._trainers.is_cut_alike(own) for one, own in ranks.items()]
        try:
            sending = self._trainers.begin_sending(
                receivers.ranks or {0}, self.policy_version, in_pieces=bool(alike) and all(alike)
            )
        except WeightsGone as gone:
            return [(engine, gone) for engine in engines]
        channel = sending.channel(receivers.num_remote_workers) if receivers.remote else None
        begun = receivers.begin(channel)
        if channel is not None and not sending.join(channel):
            receivers.lose_remote()
        receivers.await_all(begun)
        self._send(sending, receivers)
        if self._keeps_copies and self._copies is None:
            self._copies = self._trainers.begin_copies(self.policy_version)
        receivers.end(self.policy_version)
        return receivers.outcomes

    def stored(self) -> StoredWeights:
        """Made now, unless they were before."""
        return (self._copies or self._trainers.begin_copies(self.policy_version))()

    @staticmethod
    def _send(sending: Sending, receivers: "_Receivers") -> None:
        while (parts := sending.next()) is not None:
            receivers.await_loaded()
            receivers.load(parts)
            receivers.sent = sending.broadcast() if receivers.remote else None
        receivers.await_loaded()
        sending.end()


class _Receivers:
    """Engines that load in step with each other; one that fails is left behind."""

    def __init__(self, ranks: Mapping[EngineHandle, tuple[int, ...]]) -> None:
        self._ranks = ranks
        self._failures: dict[EngineHandle, Failure | None] = dict.fromkeys(ranks)
        self._checksums: dict[EngineHandle, list[Mapping[str, str]]] = {engine: [] for engine in ranks}
        """Of what each was sent."""
        self._loading: list[tuple[EngineHandle, Reply[None]]] = []
        self.sent: Callable[[], bool] | None = None

    @property
    def outcomes(self) -> list[Outcome]:
        return list(self._failures.items())

    @property
    def ranks(self) -> set[int]:
        return {rank for ranks in self._ranks.values() for rank in ranks}

    @property
    def remote(self) -> list[EngineHandle]:
        return [engine for engine in self._alive if not self._ranks[engine]]

    @property
    def num_remote_workers(self) -> int:
        return sum(engine.num_workers for engine in self.remote)

    def begin(self, channel: Channel | None) -> list[tuple[EngineHandle, Reply[None]]]:
        first, begun = 1, []
        for engine in self._alive:
            if self._ranks[engine] or channel is None:
                begun.append((engine, engine.begin_weights()))
            else:
                begun.append((engine, engine.begin_weights(replace(channel, first=first))))
                first += engine.num_workers
        return begun

    def load(self, parts: Mapping[int, Part]) -> None:
        """Does not wait."""
        broadcast = replace(next(iter(parts.values())), buffer=None)
        for engine in self._alive:
            bucket = SharedBucket(tuple(parts[rank] for rank in self._ranks[engine]) or (broadcast,))
            self._checksums[engine].append(bucket.checksums)
            self._loading.append((engine, engine.load_bucket(bucket)))

    def await_loaded(self) -> None:
        """Until all have loaded what they were given last."""
        if self.sent is not None and not self.sent():
            self.lose_remote()
        self.sent = None
        self.await_all(self._loading)
        self._loading = []

    def await_all(self, replies: list[tuple[EngineHandle, Reply[None]]]) -> None:
        for engine, reply in replies:
            try:
                if self._failures[engine] is None:
                    reply.get(PUBLISH_LIMIT_S)
            except EngineDied as death:
                self._failures[engine] = death

    def lose_remote(self) -> None:
        """A broadcast with one member less is over for all."""
        for engine in self.remote:
            self._failures[engine] = _BROKEN

    def end(self, policy_version: int) -> None:
        ended = [(engine, engine.end_weights(policy_version)) for engine in self._alive]
        for engine, reply in ended:
            self._failures[engine] = failure(combined_checksum(self._checksums[engine]), reply)

    @property
    def _alive(self) -> list[EngineHandle]:
        return [engine for engine, failure in self._failures.items() if failure is None]
