"""Which pods a job gets: GPU workers, the coordinator, and the storage that all of them mount."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from longshore.api import contract, names
from longshore.api.base import ApiModel, Freeform, OutputPath, Quantity, Requests
from longshore.api.quantity import parse_bytes
from longshore.api.rules import Rule

DEFAULT_GPU_POD_MEMORY: Final = "4Gi"
"""Memory of a worker, trainer or judge pod for which the job requests none."""

LabelMap = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]


class Toleration(ApiModel):
    """Toleration of a pod, for the check of its fields."""

    key: str | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


def _check_tolerations(tolerations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Check what an API server would refuse, or leave out, when the pods have been admitted."""
    _TOLERATIONS.validate_python(tolerations)
    return tolerations


_TOLERATIONS: Final = TypeAdapter(list[Toleration])


class PodOptions(ApiModel):
    """Resources and placement of the pods of one component."""

    resources: Requests = Field(default_factory=dict)
    """Requests of the container; the memory is also its limit, and `gpusPerPod` counts GPUs. Unset: 1 CPU and 4Gi for a
    GPU pod (real GPUs: without a limit), 500m and 2Gi or more for the coordinator."""
    node_selector: LabelMap = Field(default_factory=dict)
    """Labels that the nodes of the pods must have."""
    tolerations: Annotated[list[Freeform], Field(max_length=32), AfterValidator(_check_tolerations)] = Field(
        default_factory=list
    )
    """Tolerations of the pods, as in a pod: taints of nodes that they accept."""
    template: Freeform = Field(default_factory=dict)
    """Patch that is merged over the generated pod: its metadata and spec; lists of named items are merged by name."""

    def requests(self) -> dict[str, str]:
        """Return resource requests as Kubernetes strings."""
        return {name: str(quantity) for name, quantity in self.resources.items()}

    def memory_bytes(self, default: str) -> int:
        """Return the memory that the main container may use: the limit of the template, or what the job requests."""
        containers = self.template.get("spec", {}).get("containers", [])
        own: dict[str, Any] = next((one for one in containers if one.get("name") == contract.CONTAINER), {})
        limit = own.get("resources", {}).get("limits", {}).get("memory")
        return parse_bytes(limit if limit is not None else self.requests().get("memory", default))


class Workers(PodOptions):
    """GPU pods. A pod holds its GPUs for the life of the job, whether it samples, trains or waits."""

    replicas: int = Field(default=1, ge=1, le=4_096)
    """Number of pods."""
    gpus_per_pod: int = Field(default=1, ge=0, le=16)
    """Number of GPUs of each pod. 0: one engine each on the CPU."""
    gpu_resource_name: str = Field(default="nvidia.com/gpu", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=316)
    """Extended resource that represents a GPU, such as amd.com/gpu. Those of the domain longshore.dev are simulated:
    the pods compute on the CPU."""

    @property
    def has_accelerator(self) -> bool:
        """Whether worker pods have real GPUs."""
        return self.gpus_per_pod > 0 and not self.gpu_resource_name.startswith(f"{names.GROUP}/")


_ELASTIC_RULES: Final = (
    Rule(
        "minReplicas",
        "!has(self.minReplicas) || self.minReplicas <= self.replicas",
        "minReplicas must not exceed replicas: lower it",
    ),
)


class ElasticWorkers(Workers, rules=_ELASTIC_RULES):
    """GPU pods whose number may change while the job runs."""

    min_replicas: int | None = Field(default=None, ge=1, le=4_096)
    """Smallest number of worker pods with which the job runs, where the operator admits jobs. More pods are taken while
    their GPUs idle, and given back between steps. Unset: `replicas`."""

    @property
    def least_replicas(self) -> int:
        """Worker pods that the job needs."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def is_elastic(self) -> bool:
        """Whether the job can run with fewer worker pods than it would take."""
        return self.least_replicas < self.replicas


class AccessMode(StrEnum):
    """How nodes may mount a volume."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


class ClaimTemplate(ApiModel):
    """Volume claim that the operator creates for the job and that is deleted with it."""

    size: Quantity
    """Capacity that the claim requests, such as 100Gi."""
    storage_class_name: str | None = Field(default=None, max_length=253)
    """Storage class of the claim. Unset: the default of the cluster."""
    access_mode: AccessMode = AccessMode.READ_WRITE_MANY
    """Access mode of the claim. With ReadWriteOnce, all pods run on one node."""


_STORAGE_RULES: Final = (
    Rule(
        "",
        "has(self.claimName) != has(self.create)",
        "set exactly one of claimName and create",
    ),
)


class Storage(ApiModel, rules=_STORAGE_RULES):
    """Volume with the model, the data and the output of the job. Environment pods do not mount it."""

    claim_name: str | None = Field(default=None, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """Existing PersistentVolumeClaim in the namespace of the job."""
    create: ClaimTemplate | None = None
    """Claim that the operator creates for the job and that is deleted with it."""
    output: OutputPath = ""
    """Directory inside the storage for checkpoints, metrics, logs and the final model. A job continues from the newest
    checkpoint in it. Empty: `rljobs/NAME-UID`."""
