"""A job as a Workload, and what an admitted Workload asks of its pods."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore_operator.config import OperatorConfig
from longshore_operator.context import PodPlacement
from longshore_operator.identity import ANNOTATION_FINGERPRINT, ANNOTATION_GENERATION, Identity, fingerprint
from longshore_operator.kueue.view import (
    GROUP,
    LABEL_PREBUILT,
    LABEL_PRIORITY_CLASS,
    KueueView,
    Object,
    Priority,
)
from longshore_operator.pod_sets import PodSet, pod_sets, requests

MAX_POD_SETS: Final = 8
"""Largest number of pod sets of a Workload."""
_FOR_SCHEDULING: Final = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
    "resources",
    "resourceClaims",
)
_OF_CONTAINER: Final = ("name", "resources", "restartPolicy")
"""Fields of a container that are part of a Workload.

The image is not: with another one, a job that waits would get another Workload and lose its place in the queue.
"""
_TOPOLOGY_REQUESTS: Final = {
    f"{GROUP}/podset-required-topology": "required",
    f"{GROUP}/podset-preferred-topology": "preferred",
    f"{GROUP}/podset-unconstrained-topology": "unconstrained",
}
"""Annotations of pods, in the order in which they count, and the fields of a topology request."""
_GATE: Final = f"{GROUP}/topology"
"""Kueue chooses nodes for pods with this gate, and removes it."""
_SOURCE_KUEUE: Final = f"{GROUP}/workloadpriorityclass"
_SOURCE_KUBERNETES: Final = "scheduling.k8s.io/priorityclass"


def workload_name(job: RLJob) -> str:
    """Name of the Workload that speaks for a job: by its label that of a prebuilt one, else its own."""
    prebuilt = (job.metadata.get("labels") or {}).get(LABEL_PREBUILT)
    return str(prebuilt) if prebuilt else names.workload(Identity.of(job).name)


def requested_pod_sets(job: RLJob, config: OperatorConfig) -> list[dict[str, Any]]:
    """Return every pod that the job may have at once. Kueue may admit fewer of the workers (partial admission)."""
    return [
        {"name": one.name, "count": one.num_most, "template": {"spec": _for_kueue(one.pod["spec"])}}
        | ({"minCount": job.spec.workers.least_replicas} if _is_elastic(job, one) else {})
        | _topology_request(one)
        for one in pod_sets(job, config)
    ]


def _topology_request(one: PodSet) -> dict[str, Any]:
    """Return what the annotations of the pods ask of their nodes.

    Pods get domains in the order of their index.
    """
    annotations = one.pod["metadata"]["annotations"]
    asked = next((name for name in _TOPOLOGY_REQUESTS if name in annotations), None)
    if asked is None:
        return {}
    field = _TOPOLOGY_REQUESTS[asked]
    wanted = {field: annotations[asked] == "true" if field == "unconstrained" else annotations[asked]}
    return {"topologyRequest": wanted | {"podIndexLabel": names.LABEL_INDEX}}


def _is_elastic(job: RLJob, one: PodSet) -> bool:
    return one.component is Component.WORKER and job.spec.workers.is_elastic


def workload(job: RLJob, config: OperatorConfig, view: KueueView) -> dict[str, Any]:
    """Build the Workload of a job, for the version that is served."""
    identity = Identity.of(job)
    spec = {
        "queueName": view.queue,
        "podSets": requested_pod_sets(job, config),
        **_priority(view.priority, view.version),
    }
    metadata = identity.metadata(workload_name(job))
    # The priority class is also a label, by which Kueue finds Workloads of a class.
    if view.priority is not None and view.priority.is_kueues:
        metadata["labels"][LABEL_PRIORITY_CLASS] = view.priority.name
    in_queue = [view.queue, asdict(view.priority) if view.priority is not None else None]
    metadata["annotations"] = {
        ANNOTATION_FINGERPRINT: f"{fingerprint(in_queue)}-{fingerprint(spec['podSets'])}",
        ANNOTATION_GENERATION: str(identity.generation),
    }
    return {
        "apiVersion": f"{GROUP}/{view.version}",
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec | {"active": not job.spec.suspend},
    }


def is_outdated(job: RLJob, config: OperatorConfig, view: KueueView) -> bool:
    """Return whether the job has a Workload and needs another one, for which it loses its place in the queue.

    A new version of the operator may make other pod sets of the same spec, as a default has changed or a field is new.
    The user has changed nothing then, and the Workload stays.
    """
    if view.workload is None or view.version is None or view.is_prebuilt:
        return False
    found, wanted = view.workload, workload(job, config, view)
    queue, _, pod_sets = _annotation(found, ANNOTATION_FINGERPRINT).partition("-")
    wanted_queue, _, wanted_pod_sets = _annotation(wanted, ANNOTATION_FINGERPRINT).partition("-")
    has_changed = _annotation(found, ANNOTATION_GENERATION) != _annotation(wanted, ANNOTATION_GENERATION)
    return queue != wanted_queue or (pod_sets != wanted_pod_sets and has_changed)


def uncovered(found: Object, wanted: list[dict[str, Any]]) -> str:
    """Return the pod set for which a prebuilt Workload asks too little; empty: it covers all pods of the job."""
    sets = {one["name"]: one for one in found["spec"].get("podSets") or ()}
    for one in wanted:
        given = sets.get(one["name"])
        if given is None or given.get("count", 1) < one["count"]:
            return str(one["name"])
        covered = requests(given["template"]["spec"])
        asked = requests(one["template"]["spec"])
        if any(amount > covered.get(resource, 0) for resource, amount in asked.items()):
            return str(one["name"])
    return ""


def newer_generation(found: Object, wanted: Object) -> dict[str, Any] | None:
    """Return a change by which a Workload that stays names the newest generation of the spec; None: it does."""
    newest = _annotation(wanted, ANNOTATION_GENERATION)
    if _annotation(found, ANNOTATION_GENERATION) == newest:
        return None
    return {"metadata": {"annotations": {ANNOTATION_GENERATION: newest}}}


def _annotation(manifest: Object, name: str) -> str:
    return str((manifest["metadata"].get("annotations") or {}).get(name, ""))


def num_workers(job: RLJob, view: KueueView) -> int:
    """Return the worker pods that Kueue has admitted: for an elastic job maybe fewer than it takes, for others all."""
    workers = job.spec.workers
    assignments = (view.status.get("admission") or {}).get("podSetAssignments") or ()
    count = next((one.get("count") for one in assignments if one["name"] == Component.WORKER.value), None)
    return workers.replicas if count is None else min(max(count, workers.least_replicas), workers.replicas)


def placements(view: KueueView) -> dict[str, PodPlacement]:
    """Return by pod set what flavors and admission checks require of the pods of an admitted Workload."""
    requested: dict[str, list[Object]] = {}
    for assignment in (view.status.get("admission") or {}).get("podSetAssignments") or ():
        flavors = sorted(set(assignment.get("flavors", {}).values()))
        requested[assignment["name"]] = [_of_flavor(view.flavors.get(name, {})) for name in flavors]
        if assignment.get("topologyAssignment"):
            requested[assignment["name"]].append(_of_topology(assignment["name"], view))
    for check in view.status.get("admissionChecks") or ():
        for update in check.get("podSetUpdates") or ():
            requested.setdefault(update["name"], []).append(update)
    return {name: _placement(parts) for name, parts in requested.items()}


def place_pod(pod: dict[str, Any], placement: PodPlacement) -> dict[str, Any]:
    """Return the pod with the requirements of its admission added to its own."""
    spec, metadata = pod["spec"], pod["metadata"]
    tolerations = spec.get("tolerations") or []
    more = [dict(one) for one in placement.tolerations if one not in tolerations]
    gates = [*(spec.get("schedulingGates") or ()), *({"name": gate} for gate in placement.scheduling_gates)]
    return pod | {
        "metadata": metadata
        | {"labels": {**placement.labels, **metadata["labels"]}}
        | {"annotations": {**placement.annotations, **metadata["annotations"]}},
        "spec": spec
        | {"nodeSelector": {**(spec.get("nodeSelector") or {}), **placement.node_selector}}
        | {"tolerations": [*tolerations, *more]}
        | ({"schedulingGates": gates} if gates else {}),
    }


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


def _of_topology(pod_set: str, view: KueueView) -> Object:
    """Return the labels and annotations by which Kueue knows the pods whose nodes it chooses, one by one."""
    assert view.workload is not None, "it is admitted"
    return {
        "labels": {f"{GROUP}/podset": pod_set, f"{GROUP}/tas": "true"},
        "annotations": {f"{GROUP}/workload": view.workload["metadata"]["name"]},
        "schedulingGates": [_GATE],
    }


def _placement(parts: list[Object]) -> PodPlacement:
    maps: dict[str, dict[str, str]] = {"nodeSelector": {}, "labels": {}, "annotations": {}}
    tolerations: list[dict[str, Any]] = []
    gates: list[str] = []
    for part in parts:
        gates += part.get("schedulingGates") or ()
        for field, found in maps.items():
            found |= part.get(field) or {}
        tolerations += [one for one in part.get("tolerations") or () if one not in tolerations]
    return PodPlacement(maps["nodeSelector"], tuple(tolerations), maps["labels"], maps["annotations"], tuple(gates))
