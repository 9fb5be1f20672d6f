"""All engines of a job behind one handle: they get weights together, and one that was lost comes back by itself."""

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.errors import UserError
from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_actor import EngineDied
from longshore_runtime.rollout.engine_handle import EngineHandle, Reply
from longshore_runtime.rollout.events import EngineJoined, EngineLost, Event
from longshore_runtime.types import EngineStats, Request

log = structlog.get_logger()

_PUBLISH_LIMIT_S: Final = 900.0
"""An engine that has not loaded weights by then is taken for lost."""


@dataclass(frozen=True)
class PublishedWeights:
    """Weights on their way from a trainer to the engines."""

    reference: Any
    """Ray object: it travels between the pods of trainer and engine, not through this process."""
    checksum: str
    policy_version: int


class EnginePool:
    """Only engines that have acknowledged the current weights are alive: no other is ever given a request.

    Weights are sent under the lock and awaited outside of it; an engine runs commands in the order in which they were
    sent, so that a request never overtakes the weights that it must be sampled from.
    """

    def __init__(
        self, places: Sequence[Place], spec: EngineSpec, model: str, output: str, events: "queue.SimpleQueue[Event]"
    ) -> None:
        """Begin to start one engine per place."""
        self._spec, self._model, self._output = spec, model, output
        self._places = places
        self._events = events
        self._lock = threading.Lock()
        self._current: PublishedWeights | None = None
        self._stopped = False
        self._handles = {engine: self._start(engine) for engine in range(len(places))}
        self._serving: set[int] = set()
        self._starting: list[threading.Thread] = []

    def wait_for_all(self) -> None:
        """Wait until every engine has started; raises UserError when one cannot."""
        for engine, handle in self._handles.items():
            try:
                handle.wait_started()
            except EngineStartError as error:
                raise UserError(str(error)) from error
            except EngineDied as death:
                self._events.put(EngineLost(engine, str(death)))

    def alive(self) -> Sequence[int]:
        """Engines that take requests."""
        with self._lock:
            return sorted(engine for engine in self._serving if self._handles[engine].alive)

    def add(self, engine: int, requests: Sequence[Request]) -> None:
        """Start requests; does not wait."""
        self._handles[engine].add(requests)

    def abort(self, engine: int, request_ids: Sequence[str]) -> None:
        """Stop requests; does not wait."""
        self._handles[engine].abort(request_ids)

    def stats(self) -> Mapping[int, EngineStats]:
        """State of the engines that answer."""
        replies = {engine: self._handles[engine].stats() for engine in self.alive()}
        stats: dict[int, EngineStats] = {}
        for engine, reply in replies.items():
            try:
                stats[engine] = reply.get()
            except EngineDied as death:
                log.warning("engine gone", engine=engine, reason=str(death))
        return stats

    def publish(self, weights: PublishedWeights) -> None:
        """Every started engine loads the weights and proves it by their checksum; one that fails is lost."""
        with self._lock:
            self._current = weights
            self._serving = set()
            sent = [
                (engine, handle, handle.publish(weights.reference, weights.policy_version))
                for engine, handle in self._handles.items()
                if handle.alive
            ]
        for engine, handle, reply in sent:
            self._await_acknowledgement(engine, handle, weights, reply)

    def sleep(self) -> None:
        """Leave the accelerators to the trainers; engines that are starting start first."""
        starting, self._starting = self._starting, []
        for thread in starting:
            thread.join()
        self._together("sleep")

    def wake(self) -> None:
        """Take the accelerators back; the next thing must be to publish weights."""
        self._together("wake")

    def replace(self, engine: int) -> None:
        """Start a lost engine anew; EngineJoined tells when it serves. Its pod may have to come back first."""
        with self._lock:
            self._serving.discard(engine)
            if self._stopped:
                return
            self._handles[engine].stop()
            handle = self._handles[engine] = self._start(engine)
        thread = threading.Thread(target=self._join, args=(engine, handle), name=f"rejoin-{engine}", daemon=True)
        self._starting = [*(other for other in self._starting if other.is_alive()), thread]
        thread.start()

    def stop(self) -> None:
        """End all engines."""
        self._stopped = True
        for handle in list(self._handles.values()):
            handle.stop()
        for handle in list(self._handles.values()):
            handle.wait_ended()

    def _start(self, engine: int) -> EngineHandle:
        return EngineHandle(engine, self._places[engine], self._spec, self._model, self._output, self._events)

    def _join(self, engine: int, handle: EngineHandle) -> None:
        """Wait for a new engine and give it the current weights; runs in a thread of its own."""
        try:
            handle.wait_started()
        except (EngineDied, EngineStartError) as error:
            if self._is_current(engine, handle):
                self._events.put(EngineLost(engine, str(error)))
            return
        with self._lock:
            weights = self._current
            if weights is None or engine in self._serving or not self._is_current(engine, handle):
                return
            reply = handle.publish(weights.reference, weights.policy_version)
        if self._await_acknowledgement(engine, handle, weights, reply):
            self._events.put(EngineJoined(engine))

    def _is_current(self, engine: int, handle: EngineHandle) -> bool:
        return not self._stopped and self._handles[engine] is handle

    def _await_acknowledgement(
        self, engine: int, handle: EngineHandle, weights: PublishedWeights, reply: Reply[str]
    ) -> bool:
        """Whether the engine serves now. It does not if it failed, or if newer weights are on their way to it."""
        try:
            loaded = reply.get(_PUBLISH_LIMIT_S)
        except EngineDied as death:
            if handle.stop() and self._is_current(engine, handle):
                self._events.put(EngineLost(engine, str(death)))
            return False
        assert loaded == weights.checksum, f"engine {engine} loaded other weights than were published"
        with self._lock:
            if self._current is not weights or not self._is_current(engine, handle):
                return False
            self._serving.add(engine)
        return True

    def _together(self, method: str) -> None:
        replies = {
            engine: getattr(handle, method)() for engine, handle in sorted(self._handles.items()) if handle.alive
        }
        for engine, reply in replies.items():
            try:
                reply.get()
            except EngineDied as death:
                log.warning("engine gone", engine=engine, reason=str(death))
