"""The PodGroups of three schedulers: what they are called, how a pod joins one, and the state of a job's PodGroup."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.api.scheduling import PodGroupKind
from longshore.api.status import WITHOUT_PODS, RLJobStatus
from longshore_operator.identity import ANNOTATION_FINGERPRINT


@dataclass(frozen=True, slots=True)
class PodGroupApi:
    """API that serves the PodGroups of a scheduler."""

    group: str
    version: str
    install: str
    """Text that says how to make an API server serve it."""

    @property
    def resource(self) -> str:
        """Key by which the Kubernetes client knows it."""
        return f"PodGroup@{self.group}"


APIS: Final[Mapping[PodGroupKind, PodGroupApi]] = {
    PodGroupKind.VOLCANO: PodGroupApi("scheduling.volcano.sh", "v1beta1", "install Volcano"),
    PodGroupKind.SCHEDULER_PLUGINS: PodGroupApi(
        "scheduling.x-k8s.io", "v1alpha1", "install scheduler-plugins with Coscheduling"
    ),
    PodGroupKind.KUBERNETES: PodGroupApi(
        "scheduling.k8s.io",
        "v1alpha2",
        "enable it and the features GenericWorkload and GangScheduling of Kubernetes 1.36",
    ),
}
ANNOTATION_VOLCANO: Final = "scheduling.k8s.io/group-name"
LABEL_SCHEDULER_PLUGINS: Final = "scheduling.x-k8s.io/pod-group"


def join_group(pod: dict[str, Any], kind: PodGroupKind, group: str, scheduler: str | None) -> dict[str, Any]:
    """Return the pod as a member of a PodGroup, whatever its template says of that."""
    metadata, spec = pod["metadata"], pod["spec"]
    if scheduler is not None:
        spec = spec | {"schedulerName": scheduler}
    match kind:
        case PodGroupKind.VOLCANO:
            metadata = metadata | {"annotations": metadata["annotations"] | {ANNOTATION_VOLCANO: group}}
        case PodGroupKind.SCHEDULER_PLUGINS:
            metadata = metadata | {"labels": metadata["labels"] | {LABEL_SCHEDULER_PLUGINS: group}}
        case PodGroupKind.KUBERNETES:
            spec = spec | {"schedulingGroup": {"podGroupName": group}}
    return pod | {"metadata": metadata, "spec": spec}


@dataclass(frozen=True, slots=True)
class PodGroupView:
    """State of the PodGroup of a job that wants one."""

    found: Mapping[str, Any] | None = None
    """The PodGroup of the job."""
    mistake: str = ""
    """Why it cannot be made, one sentence for people."""

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted."""
        return self.found is not None and "deletionTimestamp" in self.found["metadata"]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the manifest that the PodGroup was made from."""
        metadata = self.found["metadata"] if self.found is not None else {}
        return str((metadata.get("annotations") or {}).get(ANNOTATION_FINGERPRINT, ""))

    def keeps_waiting(self, status: RLJobStatus) -> bool:
        """Return whether the job may not start. A job that has pods keeps them."""
        return bool(self.mistake) and (status.attempt == 0 or status.phase in WITHOUT_PODS)
