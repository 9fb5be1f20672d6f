"""What the operator sees of Kueue for one job, and the words of Kueue's protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from longshore_operator.identity import controller

GROUP: Final = "kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
"""Versions of Kueue's API that Longshore supports, best first."""
LABEL_QUEUE: Final = f"{GROUP}/queue-name"
LABEL_PRIORITY_CLASS: Final = f"{GROUP}/priority-class"
LABEL_PREBUILT: Final = f"{GROUP}/prebuilt-workload-name"
"""Label of a job whose Workload others have made, such as MultiKueue in the cluster that it has chosen."""
ANNOTATION_SUSPENDED: Final = "longshore.dev/suspended"
"""Annotation of a Workload that is inactive only because its job is suspended."""

DEACTIVATED: Final = "Deactivated"
DEACTIVATED_DUE_TO: Final = f"{DEACTIVATED}DueTo"
"""Reason of an eviction that Kueue decided itself, before the name of the cause."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Priority:
    """An existing priority class."""

    name: str
    value: int
    is_kueues: bool
    """A WorkloadPriorityClass; else a PriorityClass of Kubernetes."""


@dataclass(frozen=True, slots=True)
class KueueView:
    """State of Kueue for a job with a queue."""

    queue: str
    version: str | None = None
    """Version to use; None: Kueue cannot be used, and `mistake` says why."""
    workload: Object | None = None
    priority: Priority | None = None
    mistake: str = ""
    """Why no Workload can be made, one sentence for people."""
    flavors: Mapping[str, Object] = field(default_factory=dict)
    """`spec` of the ResourceFlavors that the Workload is admitted to."""
    is_prebuilt: bool = False
    """Whether the job uses a Workload that others make."""

    @property
    def kind(self) -> str:
        """Name by which the Kubernetes client knows Workloads of this version."""
        return f"Workload@{self.version}"

    def condition(self, kind: str) -> Object:
        """Return a condition of the Workload; empty where there is none."""
        conditions = self.status.get("conditions") or ()
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def holds(self, kind: str) -> bool:
        """Return whether a condition of the Workload is True."""
        return self.condition(kind).get("status") == "True"

    @property
    def is_active(self) -> bool:
        """Whether Kueue takes the Workload into account: of an inactive one, it has given the quota to others."""
        return bool((self.workload or {}).get("spec", {}).get("active", True))

    @property
    def is_deactivated(self) -> bool:
        """Whether Kueue or a person made the Workload inactive, and not this operator for a suspended job."""
        annotations = (self.workload or {}).get("metadata", {}).get("annotations") or {}
        return not self.is_active and ANNOTATION_SUSPENDED not in annotations

    def is_foreign(self, job_uid: str) -> bool:
        """Return whether a Workload of the name speaks for another job, most likely one that is being deleted."""
        return self.workload is not None and not self.is_unowned and self._owner != job_uid

    @property
    def is_unowned(self) -> bool:
        """Whether a prebuilt Workload speaks for no job yet."""
        return self.workload is not None and self.is_prebuilt and self._owner is None

    @property
    def _owner(self) -> str | None:
        return controller((self.workload or {}).get("metadata", {})).get("uid")

    @property
    def status(self) -> Object:
        """Status of the Workload."""
        status: Object = (self.workload or {}).get("status") or {}
        return status


def flavor_names(workload: Object) -> frozenset[str]:
    """Return the ResourceFlavors that a Workload is admitted to."""
    admission = (workload.get("status") or {}).get("admission") or {}
    return frozenset(
        name for one in admission.get("podSetAssignments") or () for name in one.get("flavors", {}).values()
    )
