"""Where the nodes of a job's pods are: affinity and spreading of GPU pods, and nodes that all pods avoid."""

from collections.abc import Sequence
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.scheduling import TopologyMode
from longshore_operator.identity import Identity

_GPU_PODS: Final = [Component.WORKER.value, Component.TRAINER.value]
_IS_GPU_POD: Final = {"key": names.LABEL_COMPONENT, "operator": "In", "values": _GPU_PODS}
_NODE: Final = "kubernetes.io/hostname"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT_TOGETHER: Final = 100
_WEIGHT_ELSEWHERE: Final = 75
"""Between the two: a job stays together, and is not packed onto a node where its pods crash."""
_WEIGHT_PACKED: Final = 50
"""Below that of the topology: packing chooses among the nodes that suit the job."""


def constrain(pod: dict[str, Any], job: RLJob) -> None:
    """Add to a GPU pod what the spec asks of its node."""
    scheduling, name = job.spec.scheduling, Identity.of(job).name
    topology = scheduling.topology
    required: list[dict[str, Any]] = []
    preferred: list[dict[str, Any]] = []
    if topology is not None and topology.mode is TopologyMode.TOGETHER:
        term = {"topologyKey": topology.key, "labelSelector": _gpu_pods_of(name)}
        if topology.required:
            required.append(term)
        else:
            preferred.append({"weight": _WEIGHT_TOGETHER, "podAffinityTerm": term})
    if topology is not None and topology.mode is TopologyMode.SPREAD:
        pod["spec"]["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": topology.key,
                "whenUnsatisfiable": "DoNotSchedule" if topology.required else "ScheduleAnyway",
                "labelSelector": _gpu_pods_of(name),
            }
        ]
    if scheduling.pack_nodes:
        others = {"matchLabels": {names.LABEL_MANAGED_BY: names.MANAGED_BY}, "matchExpressions": [_IS_GPU_POD]}
        term = {"topologyKey": _NODE, "labelSelector": others, "namespaceSelector": {}}
        preferred.append({"weight": _WEIGHT_PACKED, "podAffinityTerm": term})
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        _PREFERRED: preferred,
    }
    if required or preferred:
        pod["spec"]["affinity"] = {"podAffinity": {field: terms for field, terms in affinity.items() if terms}}


def avoiding(pod: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """Return the pod such that it prefers other nodes than these, besides what its template says about nodes."""
    if not nodes:
        return pod
    affinity = pod["spec"].get("affinity") or {}
    of_nodes = _field(affinity, "nodeAffinity", {})
    preferred = _field(of_nodes, _PREFERRED, [])
    if of_nodes is None or preferred is None:
        return pod  # What is not shaped like an affinity is for the API server to refuse, with its reason.
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    term = {"weight": _WEIGHT_ELSEWHERE, "preference": {"matchFields": others}}
    of_nodes = of_nodes | {_PREFERRED: [*preferred, term]}
    return pod | {"spec": pod["spec"] | {"affinity": affinity | {"nodeAffinity": of_nodes}}}


def _field(mapping: Any, name: str, unset: Any) -> Any:
    """Return a field of a template, or None if the template has another form; `unset`: its value where it has none."""
    value = (mapping.get(name) or unset) if isinstance(mapping, dict) else None
    return value if isinstance(value, type(unset)) else None


def _gpu_pods_of(job: str) -> dict[str, Any]:
    return {"matchLabels": {names.LABEL_JOB: job}, "matchExpressions": [_IS_GPU_POD]}
