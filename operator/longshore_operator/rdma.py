"""RDMA devices of the GPU pods between which NCCL sends data: trainer replicas, engines, and new weights."""

from typing import Any

from longshore.api.names import Component
from longshore.api.rollout import Parallelism
from longshore.api.shapes import engine_pods, replica_pods
from longshore.api.spec import RLJobSpec
from longshore_operator.config import RdmaDevices


def uses_nccl_across_pods(spec: RLJobSpec, component: Component) -> bool:
    """Return whether worker or trainer pods of a job exchange data with other pods by NCCL.

    They do if the ranks that add up gradients, or the GPUs of an engine, lie in several pods, and if new weights are
    broadcast to engines that lie in other pods than the trainers.
    """
    own = spec.workers if component is Component.WORKER else spec.training_pods
    if not own.has_accelerator:
        return False
    if spec.transfers_directly and (spec.trainer_workers is not None or own.replicas > 1):
        return True
    sets = list(engine_pods(own, spec.rollout.engine.tensor_parallel_size)) if component is Component.WORKER else []
    if own is spec.training_pods:
        sets.append(frozenset().union(*replica_pods(own, spec.trainer)))
    may_grow = component is Component.WORKER and spec.rollout.engine.parallelism is Parallelism.ADAPTIVE
    return any(len(pods) > 1 for pods in sets) or (may_grow and own.replicas > 1)


def request_devices(pod: dict[str, Any], devices: RdmaDevices | None) -> None:
    """Request RDMA devices for the main container, unless the job requests another number of them.

    A limit is also the request, and a template that changes it need not change both.
    """
    if devices is not None:
        limits = pod["spec"]["containers"][0]["resources"].setdefault("limits", {})
        limits.setdefault(devices.resource, str(devices.count))
