"""The PodGroups of three schedulers: what they are called, and how a pod joins one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from longshore.api.scheduling import PodGroupKind


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


def joined(pod: dict[str, Any], kind: PodGroupKind, group: str, scheduler: str | None) -> dict[str, Any]:
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
