"""GPUs that pods would take past the admission, which counts `gpusPerPod` only."""

from typing import Final

from longshore.api.names import Component
from longshore.api.pods import Workers
from longshore.api.rljob import RLJob
from longshore_operator.identity import Identity
from longshore_operator.plan import OperatorConfig
from longshore_operator.pod_requests import requests
from longshore_operator.pod_sets import PodSet, pod_sets

_DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""How the names of resources begin by which pods request devices of a DeviceClass without a ResourceClaim."""


def uncounted_gpus(job: RLJob, config: OperatorConfig) -> str | None:
    """Return a sentence about the first pod that requests limited GPUs which are not counted; None if none does."""
    limits = config.admission.limits
    if limits is None:
        return None
    namespace = Identity.of(job).namespace
    for one in pod_sets(job, config):
        field, counted = _counted(job, one)
        if one.pod["spec"].get("resourceClaims"):
            return (
                f"spec.{field}.template.spec.resourceClaims: devices of ResourceClaims are not counted against the "
                "limits of GPUs; remove them, and set gpusPerPod and gpuResourceName"
            )
        for resource, amount in requests(one.pod["spec"]).items():
            own = counted.gpus_per_pod if counted is not None and resource == counted.gpu_resource_name else 0
            if not limits.demand(namespace, {resource: 1}):
                if not resource.startswith(_DEVICE_CLASS):
                    continue
                return (
                    f"spec.{field}: a pod requests {resource}, devices of a DeviceClass that are not counted against "
                    "the limits of GPUs; request GPUs by a resource that has a limit"
                )
            if amount > own:
                return (
                    f"spec.{field}: a pod requests {float(amount - own):g} {resource} besides gpusPerPod, and only "
                    "gpusPerPod of workers, trainerWorkers and judge pools is counted against the limits; remove them "
                    "from resources and template"
                )
    return None


def _counted(job: RLJob, one: PodSet) -> tuple[str, Workers | None]:
    """Return the field that describes pods, and the options whose GPUs are counted, if it has any."""
    spec = job.spec
    match one.component:
        case Component.COORDINATOR:
            return "coordinator", None
        case Component.REWARD:
            return "reward", None
        case Component.WORKER:
            return "workers", spec.workers
        case Component.TRAINER:
            return "trainerWorkers", spec.trainer_workers
        case Component.JUDGE:
            function = spec.reward.functions[int(one.name.partition("-")[2])]
            return f"reward.functions[{function.name}].judge.pool", function.pool
