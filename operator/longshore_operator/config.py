"""Options that the operator was installed with, and the limits of its own admission."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from longshore.api.base import ApiModel
from longshore.api.contract import POD_USER
from longshore.api.mistakes import sentence
from longshore.api.scheduling import PodGroupKind
from longshore_operator.admission.demand import Limits
from longshore_operator.template_rules import Allowed

Count = Annotated[int, Field(ge=0, le=10**6)]
Namespace = Annotated[str, Field(min_length=1, max_length=63)]
GpuLimits = Annotated[dict[str, Count], Field(max_length=16)]
API_SERVER_PORTS: Final = (443, 6443)
"""Ports of the API server's service, and of its endpoints in most clusters."""


class ConfigError(Exception):
    """The file cannot be used; the message names the field and what is wrong."""


class PriorityClass(ApiModel):
    """A priority that jobs may choose."""

    value: int = Field(ge=-(10**9), le=10**9)
    """Higher goes first, and preempts lower."""
    namespaces: list[Namespace] = Field(default_factory=list, max_length=1024)
    """Whose jobs may choose it; empty: those of every namespace."""


class AdmissionConfig(ApiModel):
    """Limits of the operator's own admission, as the chart's `admission` has them."""

    capacity: GpuLimits = Field(default_factory=dict)
    """GPUs by resource that all jobs may hold together."""
    quotas: dict[Namespace, GpuLimits] = Field(default_factory=dict)
    """GPUs by resource that the jobs of a namespace may hold."""
    priority_classes: dict[Annotated[str, Field(max_length=63)], PriorityClass] = Field(default_factory=dict)
    """Priorities by the name that the label of a job says; no label: 0."""
    shrink_timeout_s: int = Field(default=600, ge=1, le=10**6, alias="shrinkTimeoutSeconds")
    """Time for an elastic job to give worker pods back, which it does at the end of a step; then it is stopped."""

    def priorities(self, namespace: str) -> dict[str, int]:
        """Return the priorities that jobs of a namespace may choose."""
        classes = self.priority_classes.items()
        return {name: one.value for name, one in classes if not one.namespaces or namespace in one.namespaces}

    def contradictions(self) -> list[str]:
        """Return a sentence for each limit that cannot be used up because of others."""
        return [
            f"admission.quotas.{namespace}: {count} {resource} are more than the {self.capacity[resource]} of "
            f"admission.capacity, so jobs of {namespace} never get all of them: lower the quota or raise the capacity"
            for namespace, quota in self.quotas.items()
            for resource, count in quota.items()
            if count > self.capacity.get(resource, count)
        ]

    @property
    def limits(self) -> Limits | None:
        """Limits of the admission; None where nothing is limited, so that no job waits for it."""
        return Limits(self.capacity, self.quotas) if self.capacity or any(self.quotas.values()) else None


NO_ADMISSION: Final = AdmissionConfig()


class RdmaDevices(ApiModel):
    """RDMA devices of GPU pods, as the chart's `rdma` has them."""

    resource: str = Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$", max_length=316)
    """Extended resource of the device plugin, such as rdma/hca."""
    count: int = Field(default=1, ge=1, le=64)
    """Devices of each pod."""


def read_config(path: Path) -> AdmissionConfig:
    """Read the file that the chart mounts.

    Raises:
        ConfigError: it cannot be read or used.
    """
    try:
        return AdmissionConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error, 'admission')}") from error


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Options that the operator was installed with."""

    runtime_image: str
    allow_privileged_templates: bool = False
    network_policies: bool = True
    api_server_ports: tuple[int, ...] = API_SERVER_PORTS
    """Ports through which coordinators reach the API server, for the network policy."""
    page_peers: tuple[dict[str, Any], ...] = ()
    """NetworkPolicyPeers that may read the pages of jobs, in addition to users who forward the port."""
    priority_classes: frozenset[str] = frozenset()
    """PriorityClasses that templates may name."""
    admission: AdmissionConfig = NO_ADMISSION
    kueue: bool = False
    """Whether jobs may be in queues of Kueue."""
    pod_groups: frozenset[PodGroupKind] = frozenset()
    """Kinds of PodGroups that jobs may ask for."""
    runtime_classes: frozenset[str] = frozenset()
    """RuntimeClasses that templates and `reward.runtimeClassName` may name."""
    pod_user: int | None = POD_USER
    """User and group of the pods, and the group of their volumes; None: the cluster assigns them, as OpenShift does."""
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets, in the namespace of a job, with which its pods pull images."""
    rdma: RdmaDevices | None = None
    """Devices of the GPU pods between which NCCL sends data; None: pods get none."""

    @property
    def opens_pages(self) -> bool:
        """Whether pages of jobs listen on the addresses of pods, which requires policies for who may reach them."""
        return self.network_policies and bool(self.page_peers)

    @property
    def allowed(self) -> Allowed:
        """Limits of templates."""
        return Allowed(self.allow_privileged_templates, self.priority_classes, self.runtime_classes)
