"""Place engines and trainer ranks on GPUs. Pure: the shape of the worker pods decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from longshore.api.names import Component
from longshore.api.pods import Workers
from longshore.checks import model_limits
from longshore.policy.shapes import replica_slots


@dataclass(frozen=True)
class Place:
    """A pod with GPUs, and GPUs in it (none: the CPU)."""

    worker: int
    gpus: tuple[int, ...]
    component: Component = Component.WORKER
    """Component of the pod: WORKER, or TRAINER for a pod that only trains."""


def engine_places(workers: Workers, tp_size: int) -> list[Place]:
    """Return the places of engines, which fill the pods in order.

    None crosses a pod, because an engine cannot see the GPUs of other pods.
    """
    if workers.gpus_per_pod == 0:
        return [Place(worker, ()) for worker in range(workers.replicas)]
    return [
        Place(worker, _seen(workers, range(first, first + tp_size)))
        for worker in range(workers.replicas)
        for first in range(0, workers.gpus_per_pod, tp_size)
    ]


def possible_tp_sizes(workers: Workers, config: Mapping[str, Any], configured: int) -> tuple[int, ...]:
    """Return sizes that engines can have, in rising order: those that fill the pods and split the model as vLLM does.

    `config`: of the Hugging Face checkpoint. Powers of two, and the size that is configured.
    """
    if workers.gpus_per_pod == 0:
        return (configured,)
    return model_limits.possible_tp_sizes(config, workers.gpus_per_pod, configured)


def trainer_places(
    workers: Workers,
    num_replicas: int | None,
    ranks_per_replica: int = 1,
    component: Component = Component.WORKER,
) -> list[Place]:
    """Return one place per trainer rank, replica by replica, each with a separate GPU; a replica is inside one pod.

    How many, and where: `replica_slots`.
    """
    return [
        Place(worker, _seen(workers, [slot * ranks_per_replica + rank]), component)
        for worker, slot in replica_slots(workers, num_replicas, ranks_per_replica)
        for rank in range(ranks_per_replica)
    ]


def _seen(workers: Workers, gpus: Iterable[int]) -> tuple[int, ...]:
    """Return the GPUs that a process sees: no pretended ones, on which everything computes on the CPU."""
    return tuple(gpus) if workers.has_accelerator else ()
