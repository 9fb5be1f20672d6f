"""Queues for tests: those of a real Kueue, or of a stand-in that follows its documented protocol.

The stand-in plays Kueue's part for one resource: it admits by priority and age while the quota lasts, says why others
wait, evicts for a higher priority, and frees quota only when the owner of an evicted Workload has released it. Quota of
a Workload that becomes inactive is free at once, as in the real one. It deactivates what has run for too long, and what
was deactivated waits until its owner has released it and somebody has activated it again. Where the flavor has a
topology, it chooses the nodes of pods (`kueue_topology.py`). Admission waits for the checks of the ClusterQueue.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.contract.operator import kueue_topology
from tests.contract.operator.harness import GPU, Cluster, Operator, eventually
from tests.contract.operator.stand_in import StandIn

GROUP = "kueue.x-k8s.io"
TEAM = {f"{GROUP}/queue-name": "team"}
"""Labels of a job in the queue `team`."""
ON_LINUX = {"kubernetes.io/os": "linux"}
_KINDS = {
    "Workload": "workloads",
    "LocalQueue": "localqueues",
    "ClusterQueue": "clusterqueues",
    "ResourceFlavor": "resourceflavors",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "Topology": "topologies",
    "AdmissionCheck": "admissionchecks",
}
_TOPOLOGY_VERSION = "v1alpha1"
_NAMESPACED = {"Workload", "LocalQueue"}
Json = dict[str, Any]


def is_served(cluster: Cluster) -> bool:
    """Whether the cluster has Kueue."""
    return GROUP in {group.name for group in client.ApisApi(cluster.client).get_api_versions().groups}


@contextmanager
def operator_with_kueue(
    cluster: Cluster, kubeconfig: Path, log: Path, *, is_embedded: bool = False
) -> Iterator[Operator]:
    """An operator that uses Kueue, and something that admits Workloads.

    `is_embedded`: the cluster is not that of LONGSHORE_TEST_KUBECONFIG.
    """
    with kueue_controller(cluster, is_embedded=is_embedded):
        process = Operator(kubeconfig, log, "--all-namespaces", "--kueue")
        process.wait_leading()
        yield process
        process.stop()
        print(process.log())


@contextmanager
def kueue_controller(cluster: Cluster, *, is_embedded: bool = False) -> Iterator[None]:
    """Something that admits Workloads, for as long as the context lasts."""
    if "LONGSHORE_TEST_KUBECONFIG" in os.environ and not is_embedded:
        if not is_served(cluster):
            pytest.skip("the cluster of LONGSHORE_TEST_KUBECONFIG has no Kueue")
        yield
        return
    if not is_served(cluster):
        install_definitions(cluster)
    with FakeKueue(cluster):
        yield


def install_definitions(cluster: Cluster) -> None:
    """Kueue's kinds, without schemas, in both versions that Longshore speaks."""
    api = client.ApiextensionsV1Api(cluster.client)
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for kind, plural in _KINDS.items():
        versions = [
            {"name": name, "served": True, "storage": name != "v1beta2", "schema": schema}
            | ({"subresources": {"status": {}}} if kind in ("Workload", "AdmissionCheck") else {})
            for name in ((_TOPOLOGY_VERSION,) if kind == "Topology" else ("v1beta1", "v1beta2"))
        ]
        names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
        scope = "Namespaced" if kind in _NAMESPACED else "Cluster"
        body = {"metadata": {"name": f"{plural}.{GROUP}"}}
        api.create_custom_resource_definition(
            {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            | body
            | {"spec": {"group": GROUP, "scope": scope, "names": names, "versions": versions}}
        )

    def served() -> bool:
        try:
            for kind, plural in _KINDS.items():
                cluster.custom.list_cluster_custom_object(GROUP, _version(kind), plural)
        except ApiException:
            return False
        return True

    eventually("Kueue's kinds are served", served)


class Kueue:
    """Objects of Kueue, as an administrator and a user make them."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        """Name of the ClusterQueue, the flavor and the priority class."""

    def create_queue(self, namespace: str, gpus: int, node_labels: dict[str, str]) -> None:
        """A queue with so many GPUs for one namespace."""
        self.create_cluster_queue(gpus, node_labels)
        self.create_local_queue(namespace, "team")

    def create_cluster_queue(
        self, gpus: int, node_labels: dict[str, str], levels: list[str] | None = None, check: str = ""
    ) -> None:
        """A ClusterQueue with so many GPUs, in which higher priorities preempt, with its flavor and priority class.

        `levels`: labels of nodes by which Kueue chooses the nodes of pods. `check`: controller of an admission check.
        """
        toleration, flavor = {"key": "team", "operator": "Exists"}, {}
        if levels is not None:
            self._create("Topology", {"levels": [{"nodeLabel": level} for level in levels]})
            flavor = {"topologyName": self.name}
        self._create("ResourceFlavor", flavor | {"nodeLabels": node_labels, "tolerations": [toleration]})
        quotas = [{"name": GPU, "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": 100}]
        quotas += [{"name": "memory", "nominalQuota": "100Gi"}]
        resources = {
            "coveredResources": [quota["name"] for quota in quotas],
            "flavors": [{"name": self.name, "resources": quotas}],
        }
        spec = {"namespaceSelector": {}, "resourceGroups": [resources]}
        if check:
            self._create("AdmissionCheck", {"controllerName": check})
            active = {"type": "Active", "status": "True", "reason": "Active", "message": ""}
            self.cluster.custom.patch_cluster_custom_object_status(
                GROUP,
                "v1beta1",
                _KINDS["AdmissionCheck"],
                self.name,
                {"status": {"conditions": [active | {"lastTransitionTime": _now()}]}},
            )
            spec["admissionChecks"] = [self.name]
        self._create("ClusterQueue", spec | {"preemption": {"withinClusterQueue": "LowerPriority"}})
        body = {"metadata": {"name": self.name}, "value": 1000, "description": "before the others"}
        self.cluster.custom.create_cluster_custom_object(
            GROUP, "v1beta1", _KINDS["WorkloadPriorityClass"], body | self._type("WorkloadPriorityClass")
        )

    def create_local_queue(self, namespace: str, name: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"clusterQueue": self.name}} | self._type("LocalQueue")
        self.cluster.custom.create_namespaced_custom_object(GROUP, "v1beta1", namespace, _KINDS["LocalQueue"], body)

    def create_workload(self, namespace: str, name: str, labels: dict[str, str], spec: Json) -> None:
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec} | self._type("Workload")
        self.cluster.custom.create_namespaced_custom_object(GROUP, "v1beta1", namespace, "workloads", body)

    def workload(self, namespace: str, job: str) -> Json:
        """The Workload of a job; empty while there is none."""
        return self.named(namespace, f"{job}-rljob")

    def named(self, namespace: str, name: str) -> Json:
        """The Workload of a name; empty while there is none."""
        try:
            found: Json = self.cluster.custom.get_namespaced_custom_object(
                GROUP, "v1beta1", namespace, "workloads", name
            )
        except ApiException as error:
            if error.status == 404:
                return {}
            raise
        return found

    def change(self, namespace: str, job: str, **spec: Any) -> None:
        """Change the Workload of a job, as a person does."""
        self.cluster.custom.patch_namespaced_custom_object(
            GROUP, "v1beta1", namespace, "workloads", f"{job}-rljob", {"spec": spec}
        )

    def condition(self, namespace: str, job: str, kind: str) -> Json:
        return condition(self.workload(namespace, job), kind)

    def delete_queue(self) -> None:
        for kind in ("ClusterQueue", "ResourceFlavor", "WorkloadPriorityClass", "Topology", "AdmissionCheck"):
            try:
                self.cluster.custom.delete_cluster_custom_object(GROUP, _version(kind), _KINDS[kind], self.name)
            except ApiException as error:
                if error.status != 404:
                    raise

    def _create(self, kind: str, spec: Json) -> None:
        body = {"metadata": {"name": self.name}, "spec": spec} | self._type(kind)
        self.cluster.custom.create_cluster_custom_object(GROUP, _version(kind), _KINDS[kind], body)

    def _type(self, kind: str) -> Json:
        return {"apiVersion": f"{GROUP}/{_version(kind)}", "kind": kind}


def _version(kind: str) -> str:
    return _TOPOLOGY_VERSION if kind == "Topology" else "v1beta1"


def condition(workload: Json, kind: str) -> Json:
    found = (workload.get("status") or {}).get("conditions") or []
    return next((one for one in found if one["type"] == kind), {})


def holds(workload: Json, kind: str) -> bool:
    return bool(condition(workload, kind).get("status") == "True")


class FakeKueue(StandIn):
    """Kueue's controller."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._core, self._custom = cluster.core, cluster.custom

    def _list(self, kind: str) -> list[Json]:
        found: list[Json] = self._custom.list_cluster_custom_object(GROUP, _version(kind), _KINDS[kind])["items"]
        return found

    def look(self) -> None:
        """One decision: the first change that is due."""
        queues = {queue["metadata"]["name"]: queue for queue in self._list("ClusterQueue")}
        local = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in self._list("LocalQueue")}
        workloads = [one for one in self._list("Workload") if not holds(one, "Finished")]
        workloads.sort(key=lambda one: (-one["spec"].get("priority", 0), one["metadata"]["creationTimestamp"]))
        kept: set[str] = set()
        """ClusterQueues whose quota is kept for a Workload that waits for those which it has evicted."""
        for one in workloads:
            if not one["spec"].get("active", True):
                if has_run_for_too_long(one) and not condition(one, "DeactivationTarget"):
                    # The real one does so too, in the time that the owner needs to release the quota.
                    target = ("True", "MaximumExecutionTimeExceeded", "exceeding the maximum execution time")
                    self._report(one, {"DeactivationTarget": target})
                    return
                if not holds(one, "Evicted") and self._evict(one, "Deactivated", "The workload is deactivated"):
                    return
                continue
            target = condition(one, "DeactivationTarget")
            if target.get("status") == "True":
                self._deactivate(one, target["reason"], target["message"])
                return
            if has_run_for_too_long(one):
                self._deactivate(one, "MaximumExecutionTimeExceeded", "exceeding the maximum execution time")
                return
            requeued = condition(one, "Requeued")
            if requeued.get("status") == "False":
                if requeued["reason"] == "Deactivated":
                    self._report(one, {"Requeued": ("True", "Reactivated", "The workload was reactivated")})
                    return
                continue
            if holds(one, "QuotaReserved"):
                kueue_topology.ungate(self._core, one)
                checks = one["status"].get("admissionChecks") or ()
                if not holds(one, "Admitted") and all(check["state"] == "Ready" for check in checks):
                    self._report(one, {"Admitted": ("True", "Admitted", "The workload is admitted")})
                    return
                continue
            queue = local.get((one["metadata"]["namespace"], one["spec"]["queueName"]))
            if queue is None:
                message = f"LocalQueue {one['spec']['queueName']} doesn't exist"
                if self._report(one, {"QuotaReserved": ("False", "Inadmissible", message)}):
                    return
                continue
            cluster_queue = queue["spec"]["clusterQueue"]
            if cluster_queue in kept:
                continue
            users = [
                each
                for each in workloads
                if holds(each, "QuotaReserved")
                and each["spec"].get("active", True)
                and local[each["metadata"]["namespace"], each["spec"]["queueName"]]["spec"]["clusterQueue"]
                == cluster_queue
            ]
            if self._admit_or_report(one, queues[cluster_queue], users):
                return
            if any(holds(user, "Evicted") and is_lower(user, one) for user in users):
                kept.add(cluster_queue)

    def _admit_or_report(self, one: Json, queue: Json, users: list[Json]) -> bool:
        name = queue["metadata"]["name"]
        flavor = queue["spec"]["resourceGroups"][0]["flavors"][0]
        quota = int(next(each for each in flavor["resources"] if each["name"] == GPU)["nominalQuota"])
        free = quota - sum(gpus(each) for each in users)
        counts = next((counts for counts in possible_counts(one) if gpus(one, counts) <= free), None)
        if counts is not None:
            assignments = self._assignments(one, flavor["name"], counts)
            if assignments is not None:
                return self._admit(one, name, assignments, queue["spec"].get("admissionChecks") or [])
            message = f"couldn't assign flavors: topology \"{name}\" doesn't allow to fit any of the pods"
            return self._report(one, {"QuotaReserved": ("False", "Pending", message)})
        missing = gpus(one) - free
        message = f"couldn't assign flavors: insufficient unused quota for {GPU}, {missing} more needed"
        if self._report(one, {"QuotaReserved": ("False", "Pending", message)}):
            return True
        missing -= sum(gpus(user) for user in users if holds(user, "Evicted"))
        for user in reversed(users):
            if missing > 0 and is_lower(user, one) and not holds(user, "Evicted"):
                return self._evict(user, "Preempted", "Preempted to accommodate a workload of higher priority")
        return False

    def _assignments(self, one: Json, flavor: str, counts: dict[str, int]) -> list[Json] | None:
        """What each pod set gets; None: no domain of the topology has room for one that needs it."""
        found = {each["metadata"]["name"]: each["spec"] for each in self._list("ResourceFlavor")}
        topologies = {each["metadata"]["name"]: each["spec"]["levels"] for each in self._list("Topology")}
        levels = [level["nodeLabel"] for level in topologies.get(found[flavor].get("topologyName"), ())]
        assignments = []
        for pods in one["spec"]["podSets"]:
            given = {"name": pods["name"], "count": counts[pods["name"]], "flavors": {GPU: flavor, "cpu": flavor}}
            if levels:
                nodes = self._core.list_node().items
                given["topologyAssignment"] = kueue_topology.assign(nodes, levels, pods, given["count"])
                if given["topologyAssignment"] is None:
                    return None
            assignments.append(given)
        return assignments

    def _admit(self, one: Json, queue: str, assignments: list[Json], checks: list[str]) -> bool:
        changes = {"QuotaReserved": ("True", "QuotaReserved", f"Quota reserved in ClusterQueue {queue}")}
        if not checks:
            changes["Admitted"] = ("True", "Admitted", f"The workload is admitted by ClusterQueue {queue}")
        if condition(one, "Evicted"):
            changes["Evicted"] = ("False", "QuotaReserved", "Previously evicted")
        waiting = [{"name": name, "state": "Pending", "message": "", "lastTransitionTime": _now()} for name in checks]
        admission = {"clusterQueue": queue, "podSetAssignments": assignments}
        return self._report(one, changes, admission=admission, admissionChecks=waiting)

    def _evict(self, one: Json, reason: str, message: str) -> bool:
        return self._report(one, {"Evicted": ("True", reason, message)})

    def _deactivate(self, one: Json, reason: str, message: str) -> None:
        metadata = one["metadata"]
        found = self._custom.patch_namespaced_custom_object(
            GROUP, "v1beta1", metadata["namespace"], "workloads", metadata["name"], {"spec": {"active": False}}
        )
        self._evict(found, f"DeactivatedDueTo{reason}", f"The workload is deactivated due to {message}")

    def _report(self, one: Json, changes: dict[str, tuple[str, str, str]], **status: Any) -> bool:
        """Write conditions; returns whether that changed anything, so that what was read before is old."""
        known = {kind: condition(one, kind) for kind in changes}
        if not status and all(
            (known[kind].get("status"), known[kind].get("reason"), known[kind].get("message")) == conditions
            for kind, conditions in changes.items()
        ):
            return False
        now = _now()
        kept = [each for each in (one.get("status") or {}).get("conditions") or [] if each["type"] not in changes]
        conditions = [
            {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
            | {"observedGeneration": one["metadata"]["generation"]}
            for kind, (status, reason, message) in changes.items()
        ]
        metadata = one["metadata"]
        body: Json = {"metadata": {"resourceVersion": metadata["resourceVersion"]}}
        body["status"] = {"conditions": kept + conditions} | status
        self._custom.patch_namespaced_custom_object_status(
            GROUP, "v1beta1", metadata["namespace"], "workloads", metadata["name"], body
        )
        return True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_lower(workload: Json, than: Json) -> bool:
    """Whether a Workload may be evicted for another one."""
    return bool(workload["spec"].get("priority", 0) < than["spec"].get("priority", 0))


def has_run_for_too_long(workload: Json) -> bool:
    """Whether a Workload was admitted for longer than it may be."""
    limit_s, admitted = workload["spec"].get("maximumExecutionTimeSeconds"), condition(workload, "Admitted")
    if limit_s is None or admitted.get("status") != "True":
        return False
    since = datetime.fromisoformat(admitted["lastTransitionTime"].replace("Z", "+00:00"))
    return (datetime.now(UTC) - since).total_seconds() > limit_s


def possible_counts(workload: Json) -> Iterator[dict[str, int]]:
    """Pods of each set with which a Workload can be admitted: all of them, then fewer of the set with `minCount`."""
    wanted = {pods["name"]: pods["count"] for pods in workload["spec"]["podSets"]}
    yield wanted
    for pods in workload["spec"]["podSets"]:
        for count in range(pods["count"] - 1, pods.get("minCount", pods["count"]) - 1, -1):
            yield wanted | {pods["name"]: count}


def gpus(workload: Json, counts: dict[str, int] | None = None) -> int:
    """Pretended GPUs of a Workload: those of so many pods, else those that it is admitted with, or asks for.

    What it has given back is free.
    """
    status = workload.get("status") or {}
    assignments = (status.get("admission") or {}).get("podSetAssignments") or ()
    given_back = {one["name"]: one["count"] for one in status.get("reclaimablePods") or ()}
    assigned = {one["name"]: one["count"] - given_back.get(one["name"], 0) for one in assignments}
    counts = counts or assigned
    return sum(
        counts.get(pods["name"], pods["count"])
        * int(pods["template"]["spec"]["containers"][0]["resources"]["requests"].get(GPU, 0))
        for pods in workload["spec"]["podSets"]
    )
