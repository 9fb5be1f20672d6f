"""A job as a Workload, and what an admitted Workload asks of its pods."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore_operator import pods as build
from longshore_operator.fingerprint import fingerprint
from longshore_operator.identity import ANNOTATION_FINGERPRINT, Identity
from longshore_operator.kueue.view import GROUP, LABEL_PRIORITY_CLASS, KueueView, Object, Priority
from longshore_operator.observed import PodPlacement
from longshore_operator.plan import OperatorConfig

MAX_POD_SETS: Final = 8
"""Of a Workload."""
_FOR_SCHEDULING: Final = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
)
_OF_CONTAINER: Final = ("name", "resources", "restartPolicy")
"""Not the image: with another one, a job that waits would get another Workload and lose its place in the queue."""
_SOURCE_KUEUE: Final = f"{GROUP}/workloadpriorityclass"
_SOURCE_KUBERNETES: Final = "scheduling.k8s.io/priorityclass"


def pod_set(job: RLJob, component: Component, index: int) -> str:
    """Name of the pod set that a pod belongs to: one for each component, and for each judge."""
    if component is not Component.JUDGE:
        return component.value
    function, _ = job.spec.reward.judge_pod(index)
    return f"judge-{job.spec.reward.functions.index(function)}"


def pod_sets(job: RLJob, config: OperatorConfig) -> list[dict[str, Any]]:
    """Every pod that the job may have at once; roles change within pods, so the quota stays the same."""
    return [
        {"name": name, "count": count, "template": {"spec": _for_kueue(pod["spec"])}}
        for name, count, pod in _pods(job, config)
        if count
    ]


def workload(job: RLJob, config: OperatorConfig, view: KueueView) -> dict[str, Any]:
    """Build the Workload of a job, for the version that is served."""
    identity = Identity.of(job)
    spec = {"queueName": view.queue, "podSets": pod_sets(job, config), **_priority(view.priority, view.version)}
    metadata = identity.metadata(names.workload(identity.name))
    # The priority class is also a label, by which Kueue finds Workloads of a class.
    if view.priority is not None and view.priority.is_kueues:
        metadata["labels"][LABEL_PRIORITY_CLASS] = view.priority.name
    metadata["annotations"] = {ANNOTATION_FINGERPRINT: fingerprint(spec)}
    return {
        "apiVersion": f"{GROUP}/{view.version}",
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec | {"active": not job.spec.suspend},
    }


def placements(view: KueueView) -> dict[str, PodPlacement]:
    """Return by pod set what flavors and admission checks require of the pods of an admitted Workload."""
    requested: dict[str, list[Object]] = {}
    for assignment in (view.status.get("admission") or {}).get("podSetAssignments") or ():
        flavors = sorted(set(assignment.get("flavors", {}).values()))
        requested[assignment["name"]] = [_of_flavor(view.flavors.get(name, {})) for name in flavors]
    for check in view.status.get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            requested.setdefault(update["name"], []).append(update)
    return {name: _placement(parts) for name, parts in requested.items()}


def placed(pod: dict[str, Any], placement: PodPlacement) -> dict[str, Any]:
    """Return the pod with the requirements of its admission added to its own."""
    spec, metadata = pod["spec"], pod["metadata"]
    tolerations = spec.get("tolerations") or []
    more = [dict(one) for one in placement.tolerations if one not in tolerations]
    return pod | {
        "metadata": metadata
        | {"labels": {**placement.labels, **metadata["labels"]}}
        | {"annotations": {**placement.annotations, **metadata["annotations"]}},
        "spec": spec
        | {"nodeSelector": {**(spec.get("nodeSelector") or {}), **placement.node_selector}}
        | {"tolerations": [*tolerations, *more]},
    }


def _pods(job: RLJob, config: OperatorConfig) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    spec = job.spec
    yield Component.COORDINATOR.value, 1, build.coordinator_pod(job, config, 1)
    yield Component.WORKER.value, spec.workers.replicas, build.worker_pod(job, config, 1, 0, "", 1)
    if spec.trainer_workers is not None:
        yield Component.TRAINER.value, spec.trainer_workers.replicas, build.trainer_pod(job, config, 1, 0, "")
    if spec.reward.most_pods:
        yield Component.REWARD.value, spec.reward.most_pods, build.reward_pod(job, config, 1, 0, "")
    counted: dict[str, int] = {}
    first: dict[str, int] = {}
    for index in range(spec.reward.num_judge_pods):
        name = pod_set(job, Component.JUDGE, index)
        counted[name] = counted.get(name, 0) + 1
        first.setdefault(name, index)
    for name, count in counted.items():
        yield name, count, build.judge_pod(job, config, 1, first[name], "")


def _for_kueue(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod that determines its resources and where it may run."""
    spec: dict[str, Any] = {field: pod[field] for field in _FOR_SCHEDULING if pod.get(field)}
    for kind in ("containers", "initContainers"):
        if pod.get(kind):
            spec[kind] = [{field: one[field] for field in _OF_CONTAINER if field in one} for one in pod[kind]]
    return spec | {"restartPolicy": "Never"}


def _priority(priority: Priority | None, version: str | None) -> dict[str, Any]:
    if priority is None:
        return {}
    if version == "v1beta1":
        source = _SOURCE_KUEUE if priority.is_kueues else _SOURCE_KUBERNETES
        fields: dict[str, Any] = {"priorityClassName": priority.name, "priorityClassSource": source}
    else:
        kind = "WorkloadPriorityClass" if priority.is_kueues else "PriorityClass"
        group = GROUP if priority.is_kueues else "scheduling.k8s.io"
        fields = {"priorityClassRef": {"group": group, "kind": kind, "name": priority.name}}
    return fields | {"priority": priority.value}


def _of_flavor(spec: Object) -> Object:
    return {"nodeSelector": spec.get("nodeLabels") or {}, "tolerations": spec.get("tolerations") or ()}


def _placement(parts: list[Object]) -> PodPlacement:
    maps: dict[str, dict[str, str]] = {"nodeSelector": {}, "labels": {}, "annotations": {}}
    tolerations: list[dict[str, Any]] = []
    for part in parts:
        for field, found in maps.items():
            found |= part.get(field) or {}
        tolerations += [one for one in part.get("tolerations") or () if one not in tolerations]
    return PodPlacement(maps["nodeSelector"], tuple(tolerations), maps["labels"], maps["annotations"])
