"""What jobs need of what there is: GPUs by resource, in the cluster and in the quota of a namespace."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from longshore.api.spec import RLJobSpec

Key = tuple[str, str]
"""(namespace, name) of a job."""
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
    """It holds GPUs until its pods are gone, and is asked for nothing more."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A job that wants GPUs, or holds some."""

    key: Key
    gpus: Gpus
    priority: int = 0
    created: str = ""
    """RFC 3339, which sorts by time."""
    stage: Stage = Stage.WAITING

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
        """GPUs of a pool that exists."""
        namespace, resource = pool
        return (self.quotas[namespace] if namespace else self.capacity)[resource]

    def demand(self, namespace: str, gpus: Gpus) -> dict[Pool, int]:
        """What a gang takes from each pool; empty where nothing limits the job."""
        pools = ((CLUSTER, self.capacity), (namespace, self.quotas.get(namespace, {})))
        return {(name, resource): gpus[resource] for name, pool in pools for resource in gpus if resource in pool}


def gang(spec: RLJobSpec) -> dict[str, int]:
    """GPUs of all pods of a job, which start together or not at all."""
    total: Counter[str] = Counter()
    judges = [function.pool for function in spec.reward.functions if function.pool is not None]
    for pods in (spec.workers, spec.trainer_workers, *judges):
        if pods is not None:
            total[pods.gpu_resource_name] += pods.replicas * pods.gpus_per_pod
    return {resource: count for resource, count in sorted(total.items()) if count}
