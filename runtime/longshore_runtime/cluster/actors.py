"""Waiting for actors: for their answers, and for their end."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import ray
import structlog

log = structlog.get_logger()

_LIMIT_S: Final = 30.0


def wait_ended(actors: Sequence[Any]) -> None:
    """Wait until killed actors are gone: only then are their GPUs free for others."""
    for actor in actors:
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=_LIMIT_S)
        except ray.exceptions.GetTimeoutError:
            log.warning("an actor does not end")
        except ray.exceptions.RayError:
            continue  # It is gone, which is what we waited for.


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
