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
from longshore_runtime.rollout.engine_handle import EngineHandle
from longshore_runtime.rollout.events import EngineJoined, EngineLost, Event
from longshore_runtime.types import EngineStats, Request

log = structlog.get_logger()


@dataclass(frozen=True)
class PublishedWeights:
    """Weights on their way from a trainer to the engines."""

    reference: Any
    """Ray object: it travels between the pods of trainer and engine, not through this process."""
    checksum: str
    policy_version: int


_MAX_FAILED_STARTS: Final = 5


class EnginePool:
    """Only engines that have acknowledged the current weights are alive: no other is ever given a request."""

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
        self._num_failed_starts = dict.fromkeys(range(len(places)), 0)
        self._handles = {engine: self._start(engine) for engine in range(len(places))}
        self._serving: set[int] = set()

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
        """Every started engine loads the weights and proves it by their checksum; one that fails is left out."""
        with self._lock:
            self._current = weights
            self._serving = set()
            started = [engine for engine, handle in self._handles.items() if handle.alive]
            replies = {
                engine: self._handles[engine].publish(weights.reference, weights.policy_version) for engine in started
            }
            for engine, reply in replies.items():
                if self._acknowledged(engine, weights, reply):
                    self._serving.add(engine)

    def sleep(self) -> None:
        """Leave the accelerators to the trainers."""
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
            self._handles[engine] = self._start(engine)
        threading.Thread(target=self._join, args=(engine,), name=f"rejoin-{engine}", daemon=True).start()

    def stop(self) -> None:
        """End all engines."""
        with self._lock:
            self._stopped = True
            for handle in self._handles.values():
                handle.stop()

    def _start(self, engine: int) -> EngineHandle:
        return EngineHandle(engine, self._places[engine], self._spec, self._model, self._output, self._events)

    def _join(self, engine: int) -> None:
        """Wait for a new engine and give it the current weights; runs in a thread of its own."""
        handle = self._handles[engine]
        try:
            handle.wait_started()
        except (EngineDied, EngineStartError) as error:
            self._start_failed(engine, str(error))
            return
        with self._lock:
            if self._stopped or self._current is None:
                return
            reply = handle.publish(self._current.reference, self._current.policy_version)
            serves = self._acknowledged(engine, self._current, reply)
            if serves:
                self._serving.add(engine)
                self._num_failed_starts[engine] = 0
        if serves:
            self._events.put(EngineJoined(engine))
        else:
            self._start_failed(engine, "it ended while it loaded the weights")

    def _start_failed(self, engine: int, reason: str) -> None:
        if self._stopped:
            return
        self._num_failed_starts[engine] += 1
        given_up = self._num_failed_starts[engine] >= _MAX_FAILED_STARTS
        self._events.put(EngineLost(engine, reason, given_up))

    def _acknowledged(self, engine: int, weights: PublishedWeights, reply: Any) -> bool:
        try:
            loaded = reply.get()
        except EngineDied as death:
            log.warning("engine gone", engine=engine, reason=str(death))
            return False
        assert loaded == weights.checksum, f"engine {engine} loaded other weights than were published"
        return True

    def _together(self, method: str) -> None:
        replies = {engine: getattr(self._handles[engine], method)() for engine in self.alive()}
        for engine, reply in replies.items():
            try:
                reply.get()
            except EngineDied as death:
                log.warning("engine gone", engine=engine, reason=str(death))
