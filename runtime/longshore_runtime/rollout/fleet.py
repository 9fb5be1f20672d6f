"""The engines of one tensor-parallel size, which together fill the worker pods; and how to wait for several at once."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from longshore.api.pods import Workers
from longshore.api.shapes import is_possible
from longshore_runtime.backends.engine_protocol import Engine
from longshore_runtime.backends.engine_spec import EngineStartError
from longshore_runtime.cluster.actors import CHECK_EVERY_S, Check
from longshore_runtime.errors import EngineDied
from longshore_runtime.places import Places
from longshore_runtime.rollout.engine_notices import EngineNotices
from longshore_runtime.rollout.engine_replies import START_LIMIT_S, EngineLate, Reply
from longshore_runtime.rollout.remote_engine import EngineHandle

log = structlog.get_logger()

T = TypeVar("T")

_PLACE_LIMIT_S: Final = 60.0
"""Seconds for a pod to accept an engine: a running one does soon, and a missing one must not delay the others."""

_LOADED_LIMIT_S: Final = 1.0
"""Seconds for an answer about progress: imports may keep an engine from answering, and the next report asks again."""

Start = Callable[[Places, int | None], EngineHandle]
"""Function that begins to start an engine in a place, with this number; None: a number that no engine has had."""


@dataclass(frozen=True)
class FleetStart:
    """Progress of the start of a fleet."""

    num_started: int
    num_engines: int
    loading: Mapping[int, float]
    """Share of the weights that each starting engine has read; without engines that still wait for their pod."""

    @property
    def detail(self) -> str:
        """Sentence about the engine that has read least, which the others wait for."""
        if not self.loading:
            return ""
        engine, share = min(self.loading.items(), key=lambda one: (one[1], one[0]))
        if share == 0.0:
            return f"engine {engine} begins to start"
        if share < 1.0:
            return f"engine {engine} has read {share:.0%} of its weights"
        return f"engine {engine} has its weights, and prepares memory and kernels"


class Fleet:
    """Engines of one tensor-parallel size, one per place. Not thread-safe."""

    def __init__(self, tp_size: int, places: Sequence[Places], start: Start) -> None:
        """Begin to start all engines."""
        self.tp_size = tp_size
        self._places = tuple(places)
        self._start = start
        self._handles = [start(place, None) for place in places]

    def __iter__(self) -> Iterator[EngineHandle]:
        return iter(list(self._handles))

    def __contains__(self, engine: int) -> bool:
        return any(handle.engine == engine for handle in self._handles)

    def __getitem__(self, engine: int) -> EngineHandle:
        return self._handles[self._index(engine)]

    def restart(self, engine: int) -> EngineHandle:
        """Begin to start an engine again, under its number."""
        index = self._index(engine)
        self._handles[index].stop()
        self._handles[index] = self._start(self._places[index], engine)
        return self._handles[index]

    def refill(self) -> None:
        """Begin to start engines in empty places, under new numbers, because no `replace` asks for the old ones."""
        for index, handle in enumerate(self._handles):
            if handle.ended:
                self._handles[index] = self._start(self._places[index], None)

    def activate(self, timeout_s: float | None, check: Check) -> dict[int, EngineDied | EngineStartError]:
        """Wake started engines and wait for the others; return those that do not serve, with the reason.

        Engines whose pod is missing do not. `timeout_s`: for all of them; None: see `EngineHandle.wait_started`. Raises
        what `check` raises while pods are awaited.
        """
        limit_s = START_LIMIT_S if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        place_deadline_s = time.monotonic() + min(limit_s, _PLACE_LIMIT_S)
        woken = [(handle, handle.command(Engine.wake)) for handle in self if handle.alive]
        lost: dict[int, EngineDied | EngineStartError] = {}
        for handle in self:
            if handle.alive:
                continue
            try:
                place_limit_s = remaining_s(place_deadline_s)
                start_limit_s = None if timeout_s is None else remaining_s(deadline_s)
                handle.wait_started(start_limit_s, place_limit_s=place_limit_s, check=check)
            except (EngineDied, EngineStartError) as reason:
                lost[handle.engine] = reason
        for handle, failure in failures(woken, remaining_s(deadline_s)):
            handle.stop()
            lost[handle.engine] = failure
        for engine, error in lost.items():
            log.warning("an engine is not there", engine=engine, tp_size=self.tp_size, reason=str(error))
        return lost

    def starting(self) -> "FleetStart":
        """Return how far the start of the engines is."""
        starting = [handle for handle in self if handle.is_starting]
        loading: dict[int, float] = {}
        for handle in starting:
            if handle.is_placed:
                with contextlib.suppress(EngineDied, EngineStartError):  # Anyone who waits for its start learns why.
                    loading[handle.engine] = handle.loaded().get(_LOADED_LIMIT_S).share
        return FleetStart(len(self._handles) - len(starting), len(self._handles), loading)

    def stop(self) -> None:
        """End all engines, and wait until they are gone and their GPUs are free."""
        for handle in self._handles:
            handle.stop()
        for handle in self._handles:
            handle.wait_ended()

    def _index(self, engine: int) -> int:
        (index,) = (index for index, handle in enumerate(self._handles) if handle.engine == engine)
        return index


class Joining:
    """Engines that restart while others serve; a thread waits for each of them. Not thread-safe."""

    def __init__(self) -> None:
        self._threads: list[tuple[EngineHandle, threading.Thread]] = []

    def begin(self, handle: EngineHandle, join: Callable[[EngineHandle], None]) -> None:
        """Call `join` in a new thread, for an engine that has begun to start."""
        thread = threading.Thread(target=join, args=(handle,), name=f"rejoin-{handle.engine}", daemon=True)
        self._threads = [*((other, joins) for other, joins in self._threads if joins.is_alive()), (handle, thread)]
        thread.start()

    def wait(self, check: Check) -> None:
        """Wait for engines that are starting, but not for those whose pod is missing; raises what `check` raises.

        Each thread ends by itself: every answer that it waits for has a time limit.
        """
        for handle, thread in self._threads:
            while handle.is_placed and thread.is_alive():
                check()
                thread.join(CHECK_EVERY_S)


def require_possible(tp_size: int, workers: Workers) -> None:
    """Raise EngineStartError unless engines of this size fill the worker pods."""
    if workers.gpus_per_pod == 0:
        raise EngineStartError("workers.gpusPerPod: pods without GPUs hold one engine each, of one size")
    if not is_possible(workers.gpus_per_pod, workers.replicas, tp_size):
        raise EngineStartError(
            f"workers.gpusPerPod: engines of {tp_size} GPUs do not fill pods of {workers.gpus_per_pod}, "
            f"whose number is {workers.replicas}"
        )


def put_to_sleep(handles: Iterable[EngineHandle], timeout_s: float, notices: EngineNotices) -> list[EngineHandle]:
    """Free the GPUs of these engines; return those that had to be killed for it.

    Engines that are starting, or that do not fall asleep in time, are killed. Users get a notice of the latter.
    """
    handles = list(handles)
    killed = [handle for handle in handles if not handle.alive and not handle.ended]
    for handle in killed:
        notices.stops(handle.engine)
    replies = [(handle, handle.command(Engine.sleep)) for handle in handles if handle.alive]
    for handle, failure in failures(replies, timeout_s):
        log.warning("an engine does not fall asleep", engine=handle.engine, reason=str(failure))
        if isinstance(failure, EngineLate):
            notices.not_asleep(handle.engine, timeout_s)
        else:
            notices.lost(handle.engine, str(failure))
        killed.append(handle)
    for handle in killed:
        handle.stop()
    for handle in killed:
        handle.wait_ended()
    return killed


def failures(
    replies: Iterable[tuple[EngineHandle, Reply[None]]], timeout_s: float
) -> list[tuple[EngineHandle, EngineDied]]:
    """Return the engines that do not answer in time or are gone, with the reason."""
    deadline_s = time.monotonic() + timeout_s
    failed = []
    for handle, reply in replies:
        try:
            reply.get(remaining_s(deadline_s))
        except EngineDied as death:
            failed.append((handle, death))
    return failed


def answers(replies: Mapping[int, Reply[T]], timeout_s: float) -> dict[int, T]:
    """Return the answers of the engines that answer in time."""
    deadline_s = time.monotonic() + timeout_s
    answered: dict[int, T] = {}
    for engine, reply in replies.items():
        try:
            answered[engine] = reply.get(remaining_s(deadline_s))
        except EngineDied as death:
            log.warning("an engine does not answer", engine=engine, reason=str(death))
    return answered


def remaining_s(deadline_s: float) -> float:
    """Return the seconds until a time of the monotonic clock; 0 if it is over."""
    return max(0.0, deadline_s - time.monotonic())
