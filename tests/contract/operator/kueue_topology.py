"""Kueue's part in choosing nodes, for the stand-in: domains of pod sets, and gates of pods."""

from collections import defaultdict
from typing import Any

from kubernetes import client

from tests.contract.operator.harness import GPU

GROUP = "kueue.x-k8s.io"
GATE = f"{GROUP}/topology"
_MERGE = "application/merge-patch+json"
Json = dict[str, Any]
Domain = tuple[str, ...]


def assign(nodes: list[Any], levels: list[str], pods: Json, count: int) -> Json | None:
    """Domains of the lowest level for so many pods of a set; None: they do not fit as they ask to."""
    request, room = pods.get("topologyRequest") or {}, _room(nodes, levels, pods)
    level = request.get("required") or request.get("preferred")
    deepest = levels.index(level) + 1 if level else 0
    for depth in [deepest] if request.get("required") else range(deepest, -1, -1):
        parents: dict[Domain, dict[Domain, int]] = defaultdict(dict)
        for domain, num_pods in sorted(room.items()):
            parents[domain[:depth]][domain] = num_pods
        for domains in parents.values():
            if sum(domains.values()) >= count:
                return {"levels": levels, "domains": _fill(domains, count)}
    return None


def ungate(core: client.CoreV1Api, workload: Json) -> None:
    """Give each gated pod of an admitted Workload the node labels of its domain, by its index, and remove the gate."""
    metadata, admission = workload["metadata"], (workload.get("status") or {}).get("admission") or {}
    for one in admission.get("podSetAssignments") or ():
        assignment = one.get("topologyAssignment")
        if assignment is None:
            continue
        domains = [each["values"] for each in assignment["domains"] for _ in range(each["count"])]
        selector = f"{GROUP}/podset={one['name']},{GROUP}/tas=true"
        for pod in core.list_namespaced_pod(metadata["namespace"], label_selector=selector).items:
            gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
            if GATE not in gates or pod.metadata.annotations.get(f"{GROUP}/workload") != metadata["name"]:
                continue
            values = domains[int(pod.metadata.labels["longshore.dev/index"])]
            spec = {
                "nodeSelector": (pod.spec.node_selector or {}) | dict(zip(assignment["levels"], values, strict=True)),
                "schedulingGates": [{"name": gate} for gate in gates if gate != GATE],
            }
            name, namespace = pod.metadata.name, pod.metadata.namespace
            core.patch_namespaced_pod(name, namespace, {"spec": spec}, _content_type=_MERGE)


def _room(nodes: list[Any], levels: list[str], pods: Json) -> dict[Domain, int]:
    """How many pods of a set each domain has room for."""
    requested = int(pods["template"]["spec"]["containers"][0]["resources"]["requests"].get(GPU, 0))
    room: dict[Domain, int] = defaultdict(int)
    for node in nodes:
        if all(level in node.metadata.labels for level in levels):
            domain = tuple(node.metadata.labels[level] for level in levels)
            room[domain] += int(node.status.allocatable.get(GPU, 0)) // requested if requested else 100
    return room


def _fill(domains: dict[Domain, int], count: int) -> list[Json]:
    filled = []
    for domain, room in domains.items():
        if taken := min(room, count):
            filled.append({"values": list(domain), "count": taken})
        count -= taken
    return filled
