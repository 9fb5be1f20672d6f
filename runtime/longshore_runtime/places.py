"""Place engines and trainer ranks on GPUs. Pure: the shape of the worker pods decides."""

from collections.abc import Iterable
from dataclasses import dataclass

from longshore.api.names import Component
from longshore.api.pods import Workers
from longshore.api.shapes import all_parts, replica_parts


@dataclass(frozen=True)
class Place:
    """A pod with GPUs, and GPUs in it (none: the CPU)."""

    worker: int
    gpus: tuple[int, ...]
    component: Component = Component.WORKER
    """Component of the pod: WORKER, or TRAINER for a pod that only trains."""


Places = tuple[Place, ...]
"""Where an engine is: a place in each of its pods."""


def engine_places(workers: Workers, tp_size: int) -> list[Places]:
    """Return the places of engines, which fill the pods in order."""
    return [
        tuple(Place(part.pod, _seen(workers, part.slots)) for part in parts) for parts in all_parts(workers, tp_size)
    ]


def trainer_places(
    workers: Workers,
    num_replicas: int | None,
    ranks_per_replica: int = 1,
    component: Component = Component.WORKER,
) -> list[Place]:
    """Return one place per trainer rank, replica by replica, each with a separate GPU.

    How many, and where: `replica_parts`.
    """
    return [
        Place(part.pod, _seen(workers, [slot]), component)
        for parts in replica_parts(workers, num_replicas, ranks_per_replica)
        for part in parts
        for slot in part.slots
    ]


def _seen(workers: Workers, gpus: Iterable[int]) -> tuple[int, ...]:
    """Return the GPUs that a process sees: no pretended ones, on which everything computes on the CPU."""
    return tuple(gpus) if workers.has_accelerator else ()
