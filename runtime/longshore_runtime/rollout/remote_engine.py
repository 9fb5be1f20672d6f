"""The driver's handle of an engine, which runs in other pods (`engine_actor`, `engine_follower`).

driver, threads of the pool ── `add`, `publish` and others ──► EngineHandle ── numbered calls, which do not wait ──┐
                  actor: thread `engine` (EngineThread): steps ◄── commands ── event loop (EngineActor) ◄──────────┘
                               │ `_emit`                                           ▲
                               └──► event loop ── texts ──► thread of asyncio: decodes finished responses
thread `engine-N` of the driver (`_consume`) ◄── stream `events` ── event loop
        └── EngineOutput, EngineLost ──► driver's queue
thread of Ray ── `_follower_ended`: the part in another pod is gone (FollowerActor) ──► ends the actor of the engine,
        whose end `_consume` or `wait_started` hears; these end all other parts
driver ── `stop` ──► `_end`, under the lock ◄── `_consume`: a loss is reported only if the stream ends first
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import ray

from longshore.api.names import Component
from longshore.api.rollout import EngineBackend
from longshore.rounds.messages import EngineLost
from longshore_runtime.backends.engine_protocol import Engine, EngineStats, LiveResponse, Request
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.cluster.actors import Check, wait_ended, within
from longshore_runtime.cluster.deaths import Death, find_death
from longshore_runtime.cluster.placement import placement
from longshore_runtime.errors import EngineDied
from longshore_runtime.places import Places
from longshore_runtime.rollout.engine_actor import HEARTBEAT_S, STEP_LIMIT_S, RemoteEngine
from longshore_runtime.rollout.engine_follower import RemoteFollower
from longshore_runtime.rollout.engine_replies import (
    PLACE_LIMIT_S,
    Loaded,
    Reply,
    engine_error,
    wait_placed,
    wait_while_reading,
)
from longshore_runtime.rollout.events import EngineOutput, Event

P = ParamSpec("P")
T = TypeVar("T")

_SILENCE_LIMIT_S: Final = 300.0
"""Seconds without an event after which an engine is lost.

They are many times HEARTBEAT_S, because compiling may keep the process from sending heartbeats.
"""
_DEATH_LIMIT_S: Final = 10.0
"""Time limit for what Ray knows about an engine that is gone."""
_PART_LIMIT_S: Final = 10.0
"""Seconds in which Ray tells that a part has ended; the one in the first pod may hear of it earlier."""
_READER_LIMIT_S: Final = 10.0
"""Time limit for the reader thread of an engine that is gone."""


class EngineHandle:
    """One engine in one place; its loss is reported once, as EngineLost, and the handle is then of no further use.

    Commands are sent in the thread of the caller, and none of them waits; `_consume` alone runs in a thread of its own.
    """

    def __init__(
        self, engine: int, places: Places, spec: EngineSpec, model: str, output: str, emit: Callable[[Event], None]
    ) -> None:
        """Begin to start an engine; `model` and `output` are relative to the storage.

        `emit` is called from the thread that reads the events of the engine: responses have ended, or it is lost.
        """
        self.engine = engine
        self.places = places
        self.num_workers = 1 if spec.options.backend is EngineBackend.FAKE else spec.options.tensor_parallel_size
        self._emit = emit
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._alive = self._ended = False
        self._reader: threading.Thread | None = None
        first, *others = places
        self._actor = placement(first.worker, gpus=first.gpus).remote(RemoteEngine)
        self._followers = [placement(place.worker, gpus=place.gpus).remote(RemoteFollower) for place in others]
        self._loss: tuple[int, BaseException] | None = None
        """Pod of the first follower that has ended, and how Ray reports that."""
        self._is_settled = threading.Event()
        """Set once a follower or the whole engine has ended."""
        self._placed = [actor.__ray_ready__.remote() for actor in self._actors]
        meeting = self._actor.rendezvous.remote(*self._placed[1:]) if others else None
        self._start = self._actor.start.remote(spec, model, output, len(places), meeting)
        self._started = Reply[None](self._start)
        for rank, follower in enumerate(self._followers, start=1):
            ended = follower.follow.remote(spec, model, output, rank, len(places), meeting)
            ended.future().add_done_callback(partial(self._follower_ended, places[rank].worker))

    @property
    def _actors(self) -> list[Any]:
        return [self._actor, *self._followers]

    @property
    def pods(self) -> tuple[int, ...]:
        """Worker pods that it lies in."""
        return tuple(place.worker for place in self.places)

    @property
    def alive(self) -> bool:
        """Whether it has started and is neither lost nor stopped."""
        return self._alive

    @property
    def is_placed(self) -> bool:
        """Whether its pods are running."""
        placed, _ = ray.wait(self._placed, num_returns=len(self._placed), timeout=0)
        return len(placed) == len(self._placed)

    @property
    def is_starting(self) -> bool:
        """Whether it is still starting."""
        answered, _ = ray.wait([self._start], timeout=0, fetch_local=False)
        return not answered

    @property
    def ended(self) -> bool:
        """Whether it is lost or stopped, or could not start."""
        return self._ended

    def wait_started(
        self,
        timeout_s: float | None = None,
        *,
        place_limit_s: float = PLACE_LIMIT_S,
        check: Check | None = None,
    ) -> None:
        """Wait until the engine takes weights and requests; raises EngineStartError or EngineDied.

        Its pod may take `place_limit_s` to be there, unless `check` raises meanwhile; the engine has `timeout_s` from
        then on, or START_LIMIT_S without progress.
        """
        try:
            wait_placed(Reply[None](self._placed), place_limit_s, check)
            if timeout_s is None:
                wait_while_reading(self._started, self.loaded)
            else:
                self._started.get(timeout_s)
        except (EngineStartError, EngineDied) as error:
            reason = self._lost_part(error.__cause__)
            self.stop()
            if reason is not None:
                raise EngineDied(reason) from error
            raise
        with self._lock:
            if self._ended:
                raise EngineDied("the engine was stopped while it started")
            self._alive = True
        stream = self._actor.events.remote(HEARTBEAT_S, STEP_LIMIT_S)
        self._reader = threading.Thread(target=self._consume, args=(stream,), name=f"engine-{self.engine}", daemon=True)
        self._reader.start()

    def add(self, requests: Sequence[Request]) -> None:
        """Start requests; does not wait."""
        # The reply is not read: if the command fails, the engine fails, and the event stream reports that.
        self._actor.add.remote(next(self._numbers), requests)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests; does not wait. Those that still run come back with reason ABORT."""
        self._actor.abort.remote(next(self._numbers), request_ids)

    def publish(self, buckets: Sequence[Any], policy_version: int) -> Reply[str]:
        """Load weights, given by references to their buckets; the reply is the checksum of what was loaded.

        The reply raises WeightsUnavailable if they cannot be fetched; the engine then waits for other weights.
        """
        return Reply(self._actor.publish.remote(next(self._numbers), tuple(buckets), policy_version))

    def command(self, method: Callable[Concatenate[Engine, P], T], *args: P.args, **options: P.kwargs) -> Reply[T]:
        """Have the engine run a method of its backend, after all that it was sent before."""
        return Reply(self._actor.command.remote(next(self._numbers), method.__name__, *args, **options))

    def loaded(self) -> Reply[Loaded]:
        """Return how much of its weights a starting engine has read."""
        return Reply(self._actor.loaded.remote())

    def live(self) -> Reply[list[LiveResponse]]:
        """Ask for the lengths of all unfinished responses, after the current step or command."""
        return Reply(self._actor.live.remote())

    def stats(self) -> Reply[EngineStats]:
        """Ask for state and counters after the last step."""
        return Reply(self._actor.stats.remote())

    def stop(self) -> bool:
        """End the engine, without an event; return whether it was alive."""
        was_alive = self._end()
        for actor in self._actors:
            ray.kill(actor)
        return was_alive

    def find_death(self) -> tuple[int, Death] | None:
        """Return the pod in which a process of a lost engine ended, and how; None: no pod that is there knows."""
        loss = self._loss or self._loss_of_first()
        death = find_death(loss[1], loss[0], Component.WORKER) if loss is not None else None
        return None if loss is None or death is None else (loss[0], death)

    def wait_ended(self) -> None:
        """Wait until a stopped engine is gone, its GPUs are free, and no thread reads its events."""
        wait_ended(self._actors)
        if self._reader is not None:
            self._reader.join(_READER_LIMIT_S)

    def _consume(self, stream: Any) -> None:
        reason = "its event stream ended"
        try:
            for reference in within(stream, _SILENCE_LIMIT_S):
                completions, stats = ray.get(reference)
                if completions:
                    # They lie in Ray's store of objects, which is smaller than the responses of a round.
                    completions = [replace(one, trajectory=one.trajectory.copied()) for one in completions]
                    self._emit(EngineOutput(self.engine, completions, stats))
        except TimeoutError:
            reason = f"nothing was heard of the engine for {_SILENCE_LIMIT_S:.0f} s"
        except ray.exceptions.RayError as error:
            reason = self._lost_part(error) or str(engine_error(error))
        if self._end():
            for follower in self._followers:  # Alone it is of no use, and holds its GPUs.
                ray.kill(follower)
            self._emit(EngineLost(self.engine, reason))

    def _follower_ended(self, pod: int, future: "Future[None]") -> None:
        """End the whole engine, because the part in this pod has ended; a thread of Ray calls this."""
        with self._lock:
            if self._ended or self._loss is not None:
                return
            error = future.exception()
            assert error is not None, "`follow` never returns"
            self._loss = (pod, error)
        self._is_settled.set()
        # In a thread of its own: Ray answers nothing while its thread is in this function.
        threading.Thread(target=self._end_first, args=(error,), name=f"end-{self.engine}", daemon=True).start()

    def _end_first(self, error: BaseException) -> None:
        """End the part in the first pod, which cannot go on after this error of another part."""
        if isinstance(engine_error(cast(Exception, error)), EngineStartError):
            # It may refuse the same a moment later, which then is a mistake and no loss.
            ray.wait([self._start], timeout=_PART_LIMIT_S, fetch_local=False)
        ray.kill(self._actor)

    def _lost_part(self, error: BaseException | None) -> str | None:
        """Return why the engine was ended, if the part in another pod than the first was lost.

        Args:
            error: what Ray says of the first part. An error of its own may come from the loss, which Ray tells later.
        """
        if self._followers and isinstance(error, ray.exceptions.RayTaskError):
            self._is_settled.wait(_PART_LIMIT_S)
        if self._loss is None:
            return None
        pod, loss = self._loss
        lost = engine_error(cast(Exception, loss))
        if isinstance(lost, EngineStartError) and isinstance(engine_error(cast(Exception, error)), EngineStartError):
            return None  # Both refuse the same: no part was lost.
        return f"{lost} in worker {pod}"

    def _loss_of_first(self) -> tuple[int, BaseException] | None:
        """Return the first pod and how Ray reports that the part in it has ended, if it has."""
        try:
            ray.get(self._actor.__ray_ready__.remote(), timeout=_DEATH_LIMIT_S)
        except ray.exceptions.RayActorError as error:
            return self.pods[0], error
        except ray.exceptions.GetTimeoutError:
            return None
        return None

    def _end(self) -> bool:
        """Mark the engine as ended; return whether it was alive until now."""
        with self._lock:
            was_alive, self._alive, self._ended = self._alive, False, True
        self._is_settled.set()
        return was_alive
