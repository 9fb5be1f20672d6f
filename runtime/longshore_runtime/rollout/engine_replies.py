"""What Ray carries between the driver and an engine: answers, errors in place of them, and buckets of weights."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import ray

from longshore_runtime.backends.engine_spec import EngineStartError
from longshore_runtime.cluster.actors import Check, checked_get
from longshore_runtime.errors import EngineDied, WeightsUnavailable
from longshore_runtime.weights.slices import Bucket

T = TypeVar("T")

PLACE_LIMIT_S: Final = 24 * 3600.0
"""Time limit for a pod, which may wait for GPUs that others hold. The operator reports the wait."""
START_LIMIT_S: Final = 900.0
"""Seconds after which an engine that has its pod but has not started counts as lost.

While it reads weights, they count from the last that it has read: a large model takes longer from slow storage.
"""
_LOADED_EVERY_S: Final = 30.0
_LOADED_LIMIT_S: Final = 60.0
"""Time limit for the answer of a process that reads weights."""
PROCESS_GONE: Final = "the engine's process or pod is gone"
"""Beginning of the reason of a loss that nobody has asked for."""

_FETCH_LIMIT_S: Final = 300.0
"""Seconds to wait for a bucket; one that is later never arrives."""


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
            raise engine_error(error) from error
        return answer


@dataclass(frozen=True)
class Loaded:
    """Bytes of a checkpoint that an engine has read; 0 of 0: it has not begun."""

    num_bytes: int = 0
    total_bytes: int = 0

    @property
    def share(self) -> float:
        """Share of the checkpoint, 0 to 1."""
        return min(1.0, self.num_bytes / self.total_bytes) if self.total_bytes else 0.0


def wait_placed(placed: Reply[None], limit_s: float, check: Check | None) -> None:
    """Wait for the pod of an engine; raises EngineDied after `limit_s`, or what `check` raises."""
    try:
        placed.get(limit_s, check)
    except EngineLate as late:
        raise EngineDied("its pod is not there") from late


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


def engine_error(error: Exception) -> Exception:
    """Return what an error of Ray says about an engine."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, EngineDied | EngineStartError | WeightsUnavailable):
        return cause
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return EngineLate("the engine does not answer in time")
    if isinstance(error, ray.exceptions.RayActorError):
        return EngineDied(f"{PROCESS_GONE} ({type(error).__name__})")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return EngineDied(f"the engine cannot be reached: {lines[-1]}")


def fetched(buckets: Sequence[Any]) -> Iterator[Bucket]:
    """Yield buckets, given by value or as Ray references; each is fetched when the one before it has been loaded."""
    for bucket in buckets:
        yield _fetch(bucket) if isinstance(bucket, ray.ObjectRef) else bucket


def _fetch(bucket: Any) -> Bucket:
    try:
        weights: Bucket = ray.get(bucket, timeout=_FETCH_LIMIT_S)
    except ray.exceptions.RayError as error:
        raise WeightsUnavailable(f"the published weights are gone ({type(error).__name__})") from error
    return weights
