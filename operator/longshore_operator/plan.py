"""Decisions of a reconciliation: actions for the shell to carry out, and the status to write."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from longshore.api.contract import POD_USER
from longshore.api.scheduling import PodGroupKind
from longshore.api.status import RLJobStatus
from longshore_operator.admission.config import NO_ADMISSION, AdmissionConfig
from longshore_operator.template_rules import Allowed

POD_BATCH: Final = 32
"""Pods that one pass creates or deletes, and pods that it labels."""
API_SERVER_PORTS: Final = (443, 6443)
"""Ports of the API server's service, and of its endpoints in most clusters."""


@dataclass(frozen=True, slots=True)
class _Child:
    manifest: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """(kind, name) of the child."""
        return self.manifest["kind"], self.manifest["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Apply(_Child):
    """Server-side apply of a child; `fingerprint` is remembered as applied."""

    fingerprint: str
    is_kept: bool = False
    """Whether an existing child of the job is left unchanged."""
    is_new: bool = False
    """Whether the child is expected not to exist yet, so that it is created without a look."""


@dataclass(frozen=True, slots=True)
class CreateOnce(_Child):
    """Create a child unless one of that name exists; it is never read nor changed (Secrets)."""

    is_again: bool = False
    """Whether an earlier attempt had it, so that it exists unless somebody has deleted it."""


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod; one that already exists under the name is left alone."""

    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """Pod name."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod with this uid, with its own grace period."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class LabelPod:
    """Set labels of the pod with this uid, if it still exists."""

    name: str
    uid: str
    labels: dict[str, str]
    is_repair: bool = False
    """Whether somebody has changed some of these labels, and may do so again."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the RLJob itself, children in the background."""

    uid: str


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event on the RLJob; `key` makes it one event however often it is decided."""

    type: str
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object for another controller: the Workload or the PodGroup of a job."""

    manifest: dict[str, Any]
    kind: str
    """Name by which the Kubernetes client knows the kind of the object."""


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete the object with this uid; the next one describes the present job."""

    name: str
    uid: str
    kind: str


@dataclass(frozen=True, slots=True)
class PatchObject:
    """Merge into an object; if it has changed meanwhile, reconcile again instead."""

    name: str
    kind: str
    change: dict[str, Any]
    subresource: str = ""


ObjectAction = CreateObject | DeleteObject | PatchObject
Action = ObjectAction | Apply | CreateOnce | CreatePod | DeletePod | LabelPod | DeleteJob | Event


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions of one reconciliation."""

    actions: tuple[Action, ...] = ()
    status: RLJobStatus | None = None
    """Status to write (without `runtime`); None: leave it alone."""
    requeue_at: datetime | None = None
    """Time of the next pass if nothing changes."""
    has_all_children: bool = False
    """Whether, after the plan, every child matches this generation of the spec and this attempt."""


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

    @property
    def opens_pages(self) -> bool:
        """Whether pages of jobs listen on the addresses of pods, which requires policies for who may reach them."""
        return self.network_policies and bool(self.page_peers)

    @property
    def allowed(self) -> Allowed:
        """Limits of templates."""
        return Allowed(self.allow_privileged_templates, self.priority_classes, self.runtime_classes)
