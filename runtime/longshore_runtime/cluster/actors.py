"""Waiting for actors: for their answers, and for their end."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import ray
import structlog

log = structlog.get_logger()

_LIMIT_S: Final = 30.0
CHECK_EVERY_S: Final = 2.0

Check = Callable[[], None]
"""Function that is called every few seconds while pods are awaited; raises to end the wait."""


def wait_ended(actors: Sequence[Any]) -> None:
    """Wait until killed actors are gone: only then are their GPUs free for others."""
    for actor in actors:
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=_LIMIT_S)
        except ray.exceptions.GetTimeoutError:
            log.warning("an actor does not end")
        except ray.exceptions.RayError:
            continue  # It is gone, which is what we waited for.


def checked_get(references: Any, timeout_s: float | None, check: Check | None = None) -> Any:
    """Get references as `ray.get` does, and call `check` meanwhile, so that a wait for missing pods can end."""
    if check is None:
        return ray.get(references, timeout=timeout_s)
    deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        check()
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            return ray.get(references, timeout=min(left_s, CHECK_EVERY_S))
        except ray.exceptions.GetTimeoutError:
            if left_s <= CHECK_EVERY_S:
                raise


def within(stream: Any, limit_s: float) -> Iterator[Any]:
    """Yield the references of a Ray generator; raises TimeoutError when the next one is late."""
    while True:
        ready, _ = ray.wait([stream], timeout=limit_s)
        if not ready:
            raise TimeoutError
        try:
            yield next(stream)
        except StopIteration:
            return
