"""What a pool sends to its engines, whatever becomes of them."""

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import Any

import pytest

from longshore.api.pods import Workers
from longshore.api.rollout import EngineSettings
from longshore.rounds.messages import EngineLost
from longshore_runtime.backends.engine_spec import EngineSpec
from longshore_runtime.errors import EngineDied
from longshore_runtime.rollout import engine_pool
from longshore_runtime.rollout.engine_pool import EnginePool
from longshore_runtime.rollout.events import Event

REQUESTS: Any = ["a request"]


class Done:
    """A reply that is there."""

    def get(self, timeout_s: float | None = None) -> None: ...


@dataclass(eq=False)
class Handle:
    """An engine that starts at once, unless it waits for its pod."""

    has_pod: bool = True
    engine: int = 0
    alive: bool = False
    ended: bool = False
    is_placed: bool = True
    taken: list[Any] = field(default_factory=list)
    is_stopped: Flag = field(default_factory=Flag)

    def wait_started(self, check: Any = None) -> None:
        if not self.has_pod:
            self.is_stopped.wait()
            raise EngineDied("its pod is not there")
        self.alive = True

    def add(self, requests: Sequence[Any]) -> None:
        self.taken += requests

    def command(self, method: Callable[..., Any]) -> Done:
        return Done()


class Fleet:
    """One engine."""

    tp_size = 1

    def __init__(self) -> None:
        self.handle = Handle()

    def __iter__(self) -> Iterator[Handle]:
        return iter([self.handle])

    def __getitem__(self, engine: int) -> Handle:
        return self.handle

    def __contains__(self, engine: int) -> bool:
        return engine == 0

    def restart(self, engine: int) -> Handle:
        self.handle = Handle(has_pod=False)
        return self.handle

    def stop(self) -> None:
        self.handle.is_stopped.set()


@dataclass
class Fleets:
    """Fleets that start no process."""

    fleet: Fleet
    emit: Callable[[Event], None] = lambda event: None

    def __call__(self, *arguments: Any) -> "Fleets":
        self.emit = arguments[-1]
        return self

    def new(self, tp_size: int) -> Fleet:
        return self.fleet

    def stop(self) -> None: ...


class Weights:
    """Weights that every engine loads."""

    def deliver(self, engines: Sequence[Any], delivered: Any) -> list[tuple[Any, None]]:
        return [(engine, None) for engine in engines]


def serving(monkeypatch: pytest.MonkeyPatch, fleets: Fleets, weights: Weights) -> EnginePool:
    """A pool whose engine has weights."""
    monkeypatch.setattr(engine_pool, "Fleets", fleets)
    spec = EngineSpec(EngineSettings(), max_context_tokens=256)
    pool = EnginePool(Workers(replicas=1), spec, "model", "output", queue.SimpleQueue())
    pool.wait_for_all()
    pool.publish(weights)  # type: ignore[arg-type]
    return pool


def test_the_successor_of_an_engine_lost_asleep_gets_no_requests_before_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleets, weights = Fleets(Fleet()), Weights()
    pool = serving(monkeypatch, fleets, weights)
    first = fleets.fleet.handle
    pool.add(0, REQUESTS)
    pool.sleep()
    first.alive = False
    fleets.emit(EngineLost(0, "pod killed"))
    pool.wake()
    pool.publish(weights)  # type: ignore[arg-type]
    pool.add(0, REQUESTS)
    second = fleets.fleet.handle
    pool.stop()
    assert (first.taken, second.taken) == (REQUESTS, [])


def test_the_loss_of_an_engine_that_has_started_again_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be lost while weights are published, together with a trainer; then the next round hears of it late."""
    fleets = Fleets(Fleet())
    pool = serving(monkeypatch, fleets, Weights())
    assert not pool.is_gone(0)
    fleets.fleet.handle.alive, fleets.fleet.handle.ended = False, True
    fleets.emit(EngineLost(0, "pod killed"))
    assert pool.is_gone(0)
    pool.sleep()
    pool.wake()
    assert not pool.is_gone(0)
    assert not pool.is_gone(7), "of engines of another size there is none"
    pool.stop()
