"""Where engines and trainer replicas of a size lie in pods: several in a pod, or each in a set of whole pods.

The spec has rules for the sizes that `is_possible` refuses.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from longshore.api.pods import Workers
from longshore.api.training import TrainerSettings


@dataclass(frozen=True)
class PodPart:
    """Part of an engine or a replica that lies in one pod."""

    pod: int
    slots: range
    """Numbers of its GPUs in the pod; of its processes where pods have no GPUs."""


Parts = tuple[PodPart, ...]
"""Parts of an engine or a replica, by rising pod; of several pods it has every GPU."""


def is_possible(gpus_per_pod: int, num_pods: int, size: int) -> bool:
    """Return whether engines or replicas of `size` GPUs fill the pods, and each fills its pods if it has several."""
    if gpus_per_pod == 0 or size <= gpus_per_pod:
        return gpus_per_pod % size == 0
    return size % gpus_per_pod == 0 and num_pods % (size // gpus_per_pod) == 0


def pods_per_set(gpus_per_pod: int, size: int) -> int:
    """Return the number of pods that an engine or a replica of `size` GPUs lies in."""
    return max(1, size // gpus_per_pod) if gpus_per_pod else 1


def parts_per_pod(gpus_per_pod: int, size: int) -> int:
    """Return how many engines or replicas of `size` GPUs have a part in each pod."""
    return max(1, gpus_per_pod // size)


def all_parts(workers: Workers, size: int) -> list[Parts]:
    """Return where all engines or replicas of `size` GPUs lie that the pods have room for, pod by pod.

    A pod without GPUs holds one, with `size` processes.
    """
    gpus = workers.gpus_per_pod
    num_pods = pods_per_set(gpus, size)
    if num_pods > 1:
        firsts = range(0, workers.replicas - num_pods + 1, num_pods)
        return [tuple(PodPart(first + pod, range(gpus)) for pod in range(num_pods)) for first in firsts]
    slots = [range(first, first + size) for first in range(0, (gpus or size) - size + 1, size)]
    return [(PodPart(pod, own),) for pod in range(workers.replicas) for own in slots]


def replica_parts(workers: Workers, num_replicas: int | None, ranks_per_replica: int = 1) -> list[Parts]:
    """Return where every trainer replica lies, in order.

    As many replicas as the pods hold, or the first `num_replicas` of them over the pods in turn.
    """
    found = all_parts(workers, ranks_per_replica)
    in_turn = sorted(found, key=lambda parts: (parts[0].slots.start, parts[0].pod))
    return sorted(in_turn[: num_replicas or len(found)], key=lambda parts: (parts[0].pod, parts[0].slots.start))


def replica_pods(workers: Workers, trainer: TrainerSettings) -> tuple[frozenset[int], ...]:
    """Return the pods that each trainer replica lies in."""
    return tuple(map(_pods, replica_parts(workers, trainer.data_parallel_size, trainer.ranks_per_replica)))


def engine_pods(workers: Workers, tp_size: int) -> tuple[frozenset[int], ...]:
    """Return the pods that each engine of a size lies in."""
    return tuple(map(_pods, all_parts(workers, tp_size)))


def pods_per_step(gpus_per_pod: int, sizes: Iterable[int]) -> int:
    """Return the number of pods by which a job grows or shrinks: whole sets of engines and replicas of these sizes."""
    return math.lcm(*(pods_per_set(gpus_per_pod, size) for size in sizes))


def sets_that_train(
    trainer_replicas: Sequence[frozenset[int]], engines: Iterable[frozenset[int]]
) -> list[frozenset[int]]:
    """Return the sets of pods that move together and hold a whole trainer replica.

    Args:
        trainer_replicas: pods that each replica spans.
        engines: the same of each engine; those that lie in one pod may be left out.
    """
    training = frozenset().union(*trainer_replicas)
    return [one for one in united([*trainer_replicas, *engines]) if not one.isdisjoint(training)]


def united(sets: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Return the sets of pods with those united that overlap."""
    group_of: dict[int, frozenset[int]] = {}
    for one in sets:
        group = one.union(*(group_of[pod] for pod in one if pod in group_of))
        group_of |= dict.fromkeys(group, group)
    return list(dict.fromkeys(group_of.values()))


def _pods(parts: Parts) -> frozenset[int]:
    return frozenset(part.pod for part in parts)
