"""Nodes of the pods of a job: affinity and spreading of GPU pods, nodes to avoid, and the node of the volume."""

from collections.abc import Sequence
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.pods import AccessMode, PodOptions, Storage, Workers
from longshore.api.rljob import RLJob
from longshore.api.scheduling import TopologyMode
from longshore.api.shapes import engine_pods, replica_pods
from longshore_operator.identity import Identity
from longshore_operator.pod_view import PodView

_GPU_PODS: Final = [Component.WORKER.value, Component.TRAINER.value]
_IS_GPU_POD: Final = {"key": names.LABEL_COMPONENT, "operator": "In", "values": _GPU_PODS}
_NODE: Final = "kubernetes.io/hostname"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_WEIGHT_TOGETHER: Final = 100
_WEIGHT_ELSEWHERE: Final = 75
"""Between the two: a job stays together, and is not packed onto a node where its pods crash."""
_WEIGHT_PACKED: Final = 50
"""Below that of the topology: packing chooses among the nodes that suit the job."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


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
        if mates := _mates(pod, job):
            term = {"topologyKey": topology.key, "labelSelector": mates}
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


def _mates(pod: dict[str, Any], job: RLJob) -> dict[str, Any] | None:
    """Select the pods in which the same trainer replica or engine lies, if there are others: they exchange most."""
    labels, spec = pod["metadata"]["labels"], job.spec
    component, own = labels[names.LABEL_COMPONENT], int(labels[names.LABEL_INDEX])
    trains = Component.WORKER if spec.trainer_workers is None else Component.TRAINER
    sets = replica_pods(spec.training_pods, spec.trainer) if component == trains else ()
    if component == Component.WORKER:
        sets += engine_pods(spec.workers, spec.rollout.engine.tensor_parallel_size)
    pods = max((pods for pods in sets if own in pods), key=len, default=frozenset[int]())
    if len(pods) < 2:
        return None
    indices = {"key": names.LABEL_INDEX, "operator": "In", "values": [str(one) for one in sorted(pods)]}
    of_job = {names.LABEL_JOB: Identity.of(job).name, names.LABEL_COMPONENT: component}
    return {"matchLabels": of_job, "matchExpressions": [indices]}


def avoid_nodes(pod: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
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


def place_with_volume(options: PodOptions, component: Component, workers: Workers, storage: Storage) -> PodOptions:
    """Return the options of a pod, with those of the workers where it has none of its own and must be on their node.

    The coordinator is created first, alone, and its node decides where the volume is: it has to be one for workers.
    """
    if component is Component.ENVIRONMENT or not _is_on_one_node(storage):
        return options
    selector, tolerations = _nodes_of(workers)
    fields: dict[str, Any] = {"tolerations": options.tolerations or tolerations}
    if component is Component.COORDINATOR:
        fields["node_selector"] = options.node_selector or selector
    return options.model_copy(update=fields)


def _nodes_of(workers: Workers) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the node selector and the tolerations of workers, with those of their template."""
    spec = workers.template.get("spec")
    template = spec if isinstance(spec, dict) else {}
    # Another shape is refused with the pods that have it.
    selector, tolerations = template.get("nodeSelector"), template.get("tolerations")
    more = selector if isinstance(selector, dict) else {}
    others = tolerations if isinstance(tolerations, list) else []
    return {**workers.node_selector, **more}, workers.tolerations + [one for one in others if isinstance(one, dict)]


def advise_on_volume(job: RLJob, pods: Sequence[PodView], pod: PodView) -> str:
    """Return why no node fits a pod that must be where the coordinator is, and what to do; else nothing."""
    coordinator = next((one for one in pods if one.component is Component.COORDINATOR and one.node), None)
    is_elsewhere = pod.component in (Component.COORDINATOR, Component.ENVIRONMENT)
    if coordinator is None or is_elsewhere or not _is_on_one_node(job.spec.storage):
        return ""
    return (
        f"; its volume is ReadWriteOnce, so all pods must be on {coordinator.node}, where the coordinator is: set "
        "spec.workers.nodeSelector to nodes that have room for all of them, or take a volume that is ReadWriteMany"
    )


def follow_coordinator(pod: dict[str, Any], job: RLJob) -> None:
    """Require the node of the coordinator for another pod, which could not mount the volume on any other."""
    if not _is_on_one_node(job.spec.storage):
        return
    coordinator = {names.LABEL_JOB: Identity.of(job).name, names.LABEL_COMPONENT: Component.COORDINATOR.value}
    term = {"topologyKey": _NODE, "labelSelector": {"matchLabels": coordinator}}
    together = pod["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
    together[_REQUIRED] = [*together.get(_REQUIRED, ()), term]


def _is_on_one_node(storage: Storage) -> bool:
    return storage.create is not None and storage.create.access_mode is AccessMode.READ_WRITE_ONCE
