"""Weights that are published: how they reach engines, and which engines have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.rollout.engine_handle import EngineHandle, Reply

PUBLISH_LIMIT_S: Final = 900.0
"""An engine that has not loaded weights by then is taken for lost."""

Failure = EngineDied | WeightsUnavailable
"""Why an engine does not have the weights: it is lost, or they cannot be had any more."""

Outcome = tuple[EngineHandle, Failure | None]


@dataclass
class Delivered:
    """How far a delivery is. Whoever delivers counts, and any thread may read."""

    num_engines: int
    num_confirmed: int = 0
    """Engines that have loaded the weights and proved it by their checksum."""
    num_bytes: int = 0
    """Of the weights, that every engine has loaded which gets them straight from the trainers."""


class PublishedWeights(Protocol):
    """One version of the weights, on its way from a trainer to the engines."""

    @property
    def policy_version(self) -> int:
        """Optimizer steps so far."""

    def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
        """Load them into these engines, which prove it by their checksum; returns when all have or have failed."""

    def stored(self) -> "StoredWeights":
        """Copies of them, for engines that come later; raises WeightsUnavailable."""


@dataclass(frozen=True, eq=False)
class StoredWeights:
    """Implements `PublishedWeights` with objects of Ray, which it ships between the pods."""

    buckets: tuple[Any, ...]
    """They do not pass through this process."""
    checksum: str
    """`weights.buckets.combined_checksum` of the buckets."""
    policy_version: int

    def deliver(self, engines: Sequence[EngineHandle], delivered: Delivered) -> list[Outcome]:
        """All at once."""
        outcomes: list[Outcome] = []
        for engine, reply in [(engine, self.send(engine)) for engine in engines]:
            outcomes.append((engine, self.failure(reply)))
            delivered.num_confirmed += outcomes[-1][1] is None
        return outcomes

    def stored(self) -> "StoredWeights":
        """They are."""
        return self

    def send(self, engine: EngineHandle) -> Reply[str]:
        """Have an engine load them; does not wait."""
        return engine.publish(self.buckets, self.policy_version)

    def failure(self, reply: Reply[str]) -> Failure | None:
        """Wait for what `send` returned."""
        return failure(self.checksum, reply)


def failure(checksum: str, reply: Reply[str]) -> Failure | None:
    """Wait until an engine has loaded weights; why it has not, or has loaded others than those of this checksum."""
    try:
        loaded = reply.get(PUBLISH_LIMIT_S)
    except (EngineDied, WeightsUnavailable) as failure:
        return failure
    return None if loaded == checksum else EngineDied("the engine received other weights than were published")
