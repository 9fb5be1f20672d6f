"""The driver's end of an engine: calls go to its actor, and its events arrive in the driver's queue.

driver, threads of the pool ── `add`, `publish` and others ──► Ray: calls of the actor; only a `Reply` waits
actor ── stream `events` ──► thread `engine-N` (`_consume`) ── EngineOutput, EngineLost ──► driver's queue
driver ── `stop` ──► `_end`, under the lock ◄── `_consume`: a loss is reported only if the stream ends first
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

import ray

from longshore.api.names import Component
from longshore.api.rollout import EngineBackend
from longshore.rounds.messages import EngineLost
from longshore_runtime.backends.engine_protocol import EngineStats, LiveResponse, Request
from longshore_runtime.backends.engine_spec import EngineSpec, EngineStartError
from longshore_runtime.cluster.actors import Check, checked_get, wait_ended, within
from longshore_runtime.cluster.deaths import Death, find_death
from longshore_runtime.cluster.placement import placement
from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.places import Place
from longshore_runtime.rollout.engine_actor import HEARTBEAT_S, STEP_LIMIT_S, EngineActor, Loaded
from longshore_runtime.rollout.events import EngineOutput, Event
from longshore_runtime.weights.shared import BroadcastGroup, SharedBucket

T = TypeVar("T")

START_LIMIT_S: Final = 900.0
"""Seconds after which an engine that has its pod but has not started counts as lost.

While it reads weights, they count from the last that it has read: a large model takes longer from slow storage.
"""
_LOADED_EVERY_S: Final = 30.0
_LOADED_LIMIT_S: Final = 60.0
"""Time limit for the answer of a process that reads weights."""
PROCESS_GONE: Final = "the engine's process or pod is gone"
"""Beginning of the reason of a loss that nobody has asked for."""
_PLACE_LIMIT_S: Final = 24 * 3600.0
"""Time limit for a pod, which may wait for GPUs that others hold. The operator reports the wait."""
_SILENCE_LIMIT_S: Final = 300.0
"""Seconds without an event after which an engine is lost.

They are many times HEARTBEAT_S, because compiling may keep the process from sending heartbeats.
"""
_DEATH_LIMIT_S: Final = 10.0
"""Time limit for what Ray knows about an engine that is gone."""
_READER_LIMIT_S: Final = 10.0
"""Time limit for the reader thread of an engine that is gone."""

# Each pending call counts towards max_concurrency, also one that waits for its turn.
_Actor: Any = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=1000)(EngineActor)


class EngineLate(EngineDied):
    """Raised when the engine does not answer in time; its process may still run."""


class Reply(Generic[T]):
    """Pending answer of an engine: ask several engines first, then wait for all."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def get(self, timeout_s: float | None = None, check: Check | None = None) -> T:
        """Wait for the answer; raises EngineDied, EngineLate after `timeout_s`, or what the actor or `check` raises."""
        try:
            answer: T = checked_get(self._reference, timeout_s, check)
        except ray.exceptions.RayError as error:
            raise _engine_error(error) from error
        return answer


class EngineHandle:
    """One engine in one place; its loss is reported once, as EngineLost, and the handle is then of no further use.

    Commands are sent in the thread of the caller, and none of them waits; `_consume` alone runs in a thread of its own.
    """

    def __init__(
        self, engine: int, place: Place, spec: EngineSpec, model: str, output: str, emit: Callable[[Event], None]
    ) -> None:
        """Begin to start an engine; `model` and `output` are relative to the storage.

        `emit` is called from the thread that reads the events of the engine: responses have ended, or it is lost.
        """
        self.engine = engine
        self.place = place
        self.num_workers = 1 if spec.options.backend is EngineBackend.FAKE else spec.options.tensor_parallel_size
        self._emit = emit
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._alive = self._ended = False
        self._reader: threading.Thread | None = None
        self._actor = placement(place.worker, gpus=place.gpus).remote(_Actor)
        self._placed = self._actor.__ray_ready__.remote()
        self._start = self._actor.start.remote(spec, model, output)
        self._started = Reply[None](self._start)

    @property
    def alive(self) -> bool:
        """Whether it has started and is neither lost nor stopped."""
        return self._alive

    @property
    def is_placed(self) -> bool:
        """Whether its pod is running."""
        placed, _ = ray.wait([self._placed], timeout=0)
        return bool(placed)

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
        place_limit_s: float = _PLACE_LIMIT_S,
        check: Check | None = None,
    ) -> None:
        """Wait until the engine takes weights and requests; raises EngineStartError or EngineDied.

        Its pod may take `place_limit_s` to be there, unless `check` raises meanwhile; the engine has `timeout_s` from
        then on, or START_LIMIT_S without progress.
        """
        try:
            self._wait_placed(place_limit_s, check)
            if timeout_s is None:
                wait_while_reading(self._started, self.loaded)
            else:
                self._started.get(timeout_s)
        except (EngineStartError, EngineDied):
            self.stop()
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

    def begin_weights(self, channel: BroadcastGroup | None = None) -> Reply[None]:
        """Prepare for weights that come bucket by bucket, by broadcast if there is a `channel`."""
        return Reply(self._actor.begin_weights.remote(next(self._numbers), channel))

    def load_bucket(self, bucket: SharedBucket) -> Reply[None]:
        """Load a bucket; once the reply has come, the bucket may be overwritten."""
        return Reply(self._actor.load_bucket.remote(next(self._numbers), bucket))

    def finish_weights(self) -> Reply[str]:
        """Finish after the last bucket; the reply is the checksum of what was loaded."""
        return Reply(self._actor.finish_weights.remote(next(self._numbers)))

    def serve(self, policy_version: int) -> Reply[None]:
        """Have the engine allocate its KV cache and take requests for the loaded weights."""
        return Reply(self._actor.serve.remote(next(self._numbers), policy_version))

    def loaded(self) -> Reply[Loaded]:
        """Return how much of its weights a starting engine has read."""
        return Reply(self._actor.loaded.remote())

    def live(self) -> Reply[list[LiveResponse]]:
        """Ask for the lengths of all unfinished responses, after the current step or command."""
        return Reply(self._actor.live.remote())

    def stats(self) -> Reply[EngineStats]:
        """Ask for state and counters after the last step."""
        return Reply(self._actor.stats.remote())

    def sleep(self) -> Reply[None]:
        """Free the accelerator."""
        return Reply(self._actor.sleep.remote(next(self._numbers)))

    def wake(self) -> Reply[None]:
        """Take the accelerator back."""
        return Reply(self._actor.wake.remote(next(self._numbers)))

    def stop(self) -> bool:
        """End the engine, without an event; return whether it was alive."""
        was_alive = self._end()
        ray.kill(self._actor)
        return was_alive

    def find_death(self) -> Death | None:
        """Return how the process of an engine that is gone ended; None: its pod does not know, or is gone, too."""
        try:
            ray.get(self._actor.__ray_ready__.remote(), timeout=_DEATH_LIMIT_S)
        except ray.exceptions.RayActorError as error:
            return find_death(error, self.place.worker, Component.WORKER)
        except ray.exceptions.GetTimeoutError:
            return None
        return None

    def wait_ended(self) -> None:
        """Wait until a stopped engine is gone, its GPUs are free, and no thread reads its events."""
        wait_ended([self._actor])
        if self._reader is not None:
            self._reader.join(_READER_LIMIT_S)

    def _wait_placed(self, limit_s: float, check: Check | None) -> None:
        try:
            Reply[None](self._placed).get(limit_s, check)
        except EngineLate as late:
            raise EngineDied("its pod is not there") from late

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
            reason = str(_engine_error(error))
        if self._end():
            self._emit(EngineLost(self.engine, reason))

    def _end(self) -> bool:
        """Mark the engine as ended; return whether it was alive until now."""
        with self._lock:
            was_alive, self._alive, self._ended = self._alive, False, True
        return was_alive


def wait_while_reading(
    started: Reply[None],
    loaded: Callable[[], Reply[Loaded]],
    limit_s: float = START_LIMIT_S,
    now_s: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for the start of an engine; raises EngineLate after `limit_s` in which it has read no weights."""
    num_bytes, read_s = 0, now_s()
    while True:
        try:
            return started.get(min(_LOADED_EVERY_S, limit_s))
        except EngineLate:
            before = num_bytes
            # A process that waits for its storage may hold the interpreter, and says nothing meanwhile.
            with contextlib.suppress(EngineLate):
                num_bytes = loaded().get(_LOADED_LIMIT_S).num_bytes
            if num_bytes != before:
                read_s = now_s()
            elif now_s() - read_s >= limit_s:
                raise


def _engine_error(error: Exception) -> Exception:
    cause = getattr(error, "cause", None)
    if isinstance(cause, EngineDied | EngineStartError | WeightsUnavailable):
        return cause
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return EngineLate("the engine does not answer in time")
    if isinstance(error, ray.exceptions.RayActorError):
        return EngineDied(f"{PROCESS_GONE} ({type(error).__name__})")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return EngineDied(f"the engine cannot be reached: {lines[-1]}")
