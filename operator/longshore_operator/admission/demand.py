"""What jobs need of what there is: GPUs by resource, in the cluster and in the quota of a namespace."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from longshore.api.spec import RLJobSpec
from longshore_operator.identity import Key

Pool = tuple[str, str]
"""(namespace, resource): the quota of a namespace; the namespace is empty for the capacity of the cluster."""
Gpus = Mapping[str, int]
"""GPUs by the name of their resource."""

CLUSTER: Final = ""


class Stage(Enum):
    """How a job stands to GPUs."""

    WAITING = auto()
    ADMITTED = auto()
    LEAVING = auto()
    """The job holds GPUs until its pods are gone, and is asked for nothing more."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Worker pods of an elastic job beyond those that it needs: lent, while no job that waits can use their GPUs.

    They are counted in sets, as many pods as an engine or a trainer replica lies in.
    """

    resource: str
    gpus_per_set: int
    num_most: int
    """Sets that it would take."""
    num_granted: int = 0
    """Sets that it may have."""
    num_held: int = 0
    """Sets that have GPUs: those that are granted, and those that it has not given back yet."""
    is_settled: bool = True
    """The job runs with what was granted, or has not started: it may get more."""
    is_overdue: bool = False
    """Whether the job was asked for pods long ago and has not given them back."""
    pods_per_set: int = 1

    def gpus(self, num_sets: int) -> dict[str, int]:
        """Return the GPUs of so many sets."""
        return {self.resource: num_sets * self.gpus_per_set} if num_sets else {}

    def granting(self, num_sets: int) -> "Extra":
        """Return the size with so many sets granted from now on.

        What the job holds beyond them stays in use until they are gone.
        """
        return replace(self, num_granted=num_sets, num_held=max(num_sets, self.num_held), is_settled=False)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A job that wants GPUs, or holds some."""

    key: Key
    gpus: Gpus
    """The least that it can run with; all that it holds if it is leaving."""
    priority: int = 0
    created: str = ""
    """RFC 3339, which sorts by time."""
    stage: Stage = Stage.WAITING
    extra: Extra | None = None
    """GPUs that the job takes beyond `gpus`, if it is elastic."""

    @property
    def held(self) -> Gpus:
        """GPUs that nobody else can have, once the job is admitted."""
        return _sum(self.gpus, self.extra.gpus(self.extra.num_held)) if self.extra is not None else self.gpus

    def leaving(self) -> "GpuRequest":
        """Return the request of a job that is to stop with all its pods."""
        return replace(self, gpus=self.held, extra=None, stage=Stage.LEAVING)

    @property
    def order(self) -> tuple[int, str, Key]:
        """Place in the queue: higher priority first, then the older job."""
        return -self.priority, self.created, self.key


@dataclass(frozen=True, slots=True)
class Limits:
    """GPUs that jobs may hold: all together, and those of a namespace."""

    capacity: Gpus = field(default_factory=dict)
    quotas: Mapping[str, Gpus] = field(default_factory=dict)

    def size(self, pool: Pool) -> int:
        """Return the GPUs of a pool that exists."""
        namespace, resource = pool
        return (self.quotas[namespace] if namespace else self.capacity)[resource]

    def demand(self, namespace: str, gpus: Gpus) -> dict[Pool, int]:
        """Return what a gang takes from each pool; empty where nothing limits the job."""
        pools = ((CLUSTER, self.capacity), (namespace, self.quotas.get(namespace, {})))
        return {(name, resource): gpus[resource] for name, pool in pools for resource in gpus if resource in pool}


def gang(spec: RLJobSpec, num_workers: int | None = None) -> dict[str, int]:
    """Return the GPUs of all pods of a job, which start together; `num_workers`: instead of `workers.replicas`."""
    total: Counter[str] = Counter()
    workers = spec.workers if num_workers is None else spec.resized(num_workers).workers
    judges = [function.pool for function in spec.reward.functions if function.pool is not None]
    for pods in (workers, spec.trainer_workers, *judges):
        if pods is not None:
            total[pods.gpu_resource_name] += pods.replicas * pods.gpus_per_pod
    return {resource: count for resource, count in sorted(total.items()) if count}


def _sum(one: Gpus, other: Gpus) -> dict[str, int]:
    return dict(sorted((Counter(one) + Counter(other)).items()))
