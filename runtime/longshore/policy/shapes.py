"""What the shape of a job's pods allows: pods and slots of trainer replicas, and the kinds of its rounds."""

from typing import Final

from longshore.api.pods import Workers
from longshore.api.rollout import Rollout, Strategy
from longshore.api.round_status import RoundKind
from longshore.api.spec import RLJobSpec
from longshore.policy.tail_batching import period

ROUND_KINDS: Final = {
    Strategy.SYNCHRONOUS: (RoundKind.FULL,),
    Strategy.TAIL_BATCHING: (RoundKind.SHORT, RoundKind.LONG),
    Strategy.PARTIAL_ROLLOUT: (RoundKind.FULL,),
    Strategy.REORDER_ROLLOUT: (RoundKind.FULL, RoundKind.LONG),
    Strategy.GROUP_PIPELINE: (RoundKind.FULL,),
    Strategy.AUTO: (RoundKind.SHORT, RoundKind.LONG),
}
"""Kinds of round that a strategy plans."""


def usual_period(rollout: Rollout, num_prompts: int) -> tuple[RoundKind, ...]:
    """Rounds of a job in their usual order, which then begins again: those that put draws off, and the long one."""
    first, *long = ROUND_KINDS[rollout.strategy]
    match rollout.strategy:
        case Strategy.TAIL_BATCHING | Strategy.AUTO:
            num_first, num_long = period(rollout.tail_batching.prompt_factor, num_prompts)
        case Strategy.REORDER_ROLLOUT:
            num_first, num_long = rollout.reorder_rollout.max_postponements, 1
        case _:
            num_first, num_long = 1, 0
    return (*[first] * num_first, *long * num_long)


def replica_slots(workers: Workers, num_replicas: int | None, ranks_per_replica: int = 1) -> list[tuple[int, int]]:
    """(pod, slot in it) of every trainer replica, in order; a replica never crosses a pod.

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
