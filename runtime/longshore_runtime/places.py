"""Where engines and trainer ranks run. Pure: the shape of the worker pods decides."""

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


def trainer_places(workers: Workers, num_replicas: int | None, ranks_per_replica: int = 1) -> list[Place]:
    """One place per trainer rank, replica by replica, each with a GPU of its own; a replica never crosses a pod.

    As many replicas as the GPUs hold (one per pod without GPUs), or the first `num_replicas` of them over the pods in
    turn.
    """
    replicas_per_pod = workers.gpus_per_pod // ranks_per_replica if workers.gpus_per_pod else 1
    slots = [(slot, worker) for slot in range(replicas_per_pod) for worker in range(workers.replicas)]
    taken = sorted((worker, slot) for slot, worker in slots[: num_replicas or len(slots)])
    return [
        Place(worker, _seen(workers, [slot * ranks_per_replica + rank]))
        for worker, slot in taken
        for rank in range(ranks_per_replica)
    ]


def _seen(workers: Workers, gpus: Iterable[int]) -> tuple[int, ...]:
    """Pretended GPUs are placed like others and never seen: what runs there computes on the CPU."""
    return tuple(gpus) if workers.has_accelerator else ()
