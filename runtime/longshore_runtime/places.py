"""Where engines and trainer replicas run. Pure: the shape of the worker pods decides."""

from collections.abc import Iterable
from dataclasses import dataclass

from longshore.api.pods import Workers


@dataclass(frozen=True)
class Place:
    """A worker pod and GPUs in it (none: the CPU)."""

    worker: int
    gpus: tuple[int, ...]


def engine_places(workers: Workers, tp_size: int) -> list[Place]:
    """Engines fill the pods in order; none crosses a pod, since GPUs of other pods are out of its sight."""
    if workers.gpus_per_pod == 0:
        return [Place(worker, ()) for worker in range(workers.replicas)]
    return [
        Place(worker, _seen(workers, range(first, first + tp_size)))
        for worker in range(workers.replicas)
        for first in range(0, workers.gpus_per_pod, tp_size)
    ]


def trainer_places(workers: Workers, num_replicas: int | None) -> list[Place]:
    """One trainer replica per GPU (per pod without GPUs), or the first `num_replicas` of them over the pods in turn."""
    slots = [(gpu, worker) for gpu in range(max(1, workers.gpus_per_pod)) for worker in range(workers.replicas)]
    taken = sorted((worker, gpu) for gpu, worker in slots[: num_replicas or len(slots)])
    return [Place(worker, _seen(workers, [gpu])) for worker, gpu in taken]


def _seen(workers: Workers, gpus: Iterable[int]) -> tuple[int, ...]:
    """Pretended GPUs are placed like others and never seen: what runs there computes on the CPU."""
    return tuple(gpus) if workers.has_accelerator else ()
