"""Ending actors."""

from collections.abc import Sequence
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
