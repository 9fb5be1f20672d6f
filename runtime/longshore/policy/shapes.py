"""What the shape of a job's pods allows: pods and slots of trainer replicas."""

from longshore.api.pods import Workers
from longshore.api.spec import RLJobSpec


def replica_slots(workers: Workers, num_replicas: int | None, ranks_per_replica: int = 1) -> list[tuple[int, int]]:
    """Return (pod, slot in it) of every trainer replica, in order; a replica never crosses a pod.

    As many replicas as the GPUs hold (one per pod without GPUs), or the first `num_replicas` of them over the pods in
    turn.
    """
    replicas_per_pod = workers.gpus_per_pod // ranks_per_replica if workers.gpus_per_pod else 1
    slots = [(slot, pod) for slot in range(replicas_per_pod) for pod in range(workers.replicas)]
    return sorted((pod, slot) for slot, pod in slots[: num_replicas or len(slots)])


def replica_pods(spec: RLJobSpec) -> tuple[frozenset[int], ...]:
    """Return the pods that each trainer replica of a job spans."""
    trainer = spec.trainer
    slots = replica_slots(spec.training_pods, trainer.data_parallel_size, trainer.ranks_per_replica)
    return tuple(frozenset({pod}) for pod, _ in slots)
