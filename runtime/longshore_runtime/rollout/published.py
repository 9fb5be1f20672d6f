"""Weights on their way to engines, and which engines have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.rollout.engine_replies import Reply
from longshore_runtime.rollout.remote_engine import EngineHandle

PUBLISH_LIMIT_S: Final = 900.0
"""Seconds after which an engine that has not loaded the weights counts as lost."""

Failure = EngineDied | WeightsUnavailable
"""Reason why an engine does not have the weights: the engine is lost, or the weights are."""

Outcome = tuple[EngineHandle, Failure | None]


@dataclass
class Delivered:
    """Progress of a delivery. The delivering thread writes it; any thread may read it."""

    num_engines: int
    num_confirmed: int = 0
    """Number of engines that have loaded the weights and proved it by their checksum."""
    num_bytes: int = 0
    """Bytes of the weights that every engine has loaded, counted when engines read them directly from the trainers."""


class PublishedWeights(Protocol):
    """One version of the weights, on its way from a trainer to the engines."""

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps so far."""

    def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
        """Load the weights into these engines; return when each has confirmed the checksum or failed."""

    def stored(self) -> "StoredWeights":
        """Return copies for engines that join later; raises WeightsUnavailable if the trainers are gone."""


@dataclass(frozen=True, eq=False)
class StoredWeights:
    """Implement `PublishedWeights` with objects of Ray, which transfers them between pods."""

    buckets: tuple[Any, ...]
    """References to Ray objects; the values never pass through this process."""
    checksum: str
    """Checksum of the buckets (`weights.buckets.combined_checksum`)."""
    policy_version: int

    def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
        """Send the weights to all engines at once, and wait for their checksums."""
        outcomes: list[Outcome] = []
        for engine, reply in [(engine, self.send(engine)) for engine in engines]:
            outcomes.append((engine, self.failure(reply)))
            delivered.num_confirmed += outcomes[-1][1] is None
        return outcomes

    def stored(self) -> "StoredWeights":
        """Return this object: it consists of copies already."""
        return self

    def send(self, engine: EngineHandle) -> Reply[str]:
        """Have an engine load them; does not wait."""
        return engine.publish(self.buckets, self.policy_version)

    def failure(self, reply: Reply[str]) -> Failure | None:
        """Wait for the answer to `send`; return why the engine does not have the weights, or None if it has them."""
        return failure(self.checksum, reply)


def failure(checksum: str, reply: Reply[str]) -> Failure | None:
    """Wait until an engine has loaded weights; return None if their checksum is right, otherwise what went wrong."""
    try:
        loaded = reply.get(PUBLISH_LIMIT_S)
    except (EngineDied, WeightsUnavailable) as failure:
        return failure
    return None if loaded == checksum else EngineDied("the engine received other weights than were published")
