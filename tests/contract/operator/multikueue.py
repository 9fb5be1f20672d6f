"""A stand-in for MultiKueue and its adapter for custom jobs (from Kueue 0.14), between two clusters.

It follows their documented protocol for one worker cluster. A Workload with reserved quota is copied to the worker
cluster. When it is admitted there, the job is copied too, without `spec.managedBy` and with labels for its Workload and
its origin; then the admission check becomes ready, and the status of the job is copied back as a whole. What is evicted
in the cluster of the queue is deactivated in the worker cluster. What has no quota any more, or has ended, is deleted
there.
"""

from typing import Any

from kubernetes.client.exceptions import ApiException

from tests.contract.operator.harness import Cluster
from tests.contract.operator.kueue import GROUP, condition, holds
from tests.contract.operator.stand_in import StandIn

CONTROLLER = "longshore.dev/test-multikueue"
"""Controller of the admission check: the real MultiKueue, where there is one, leaves it alone."""
Json = dict[str, Any]
_WORKLOADS = (GROUP, "v1beta1", "workloads")
_JOBS = ("longshore.dev", "v1alpha1", "rljobs")


class FakeMultiKueue(StandIn):
    """MultiKueue."""

    def __init__(self, manager: Cluster, worker: Cluster, check: str) -> None:
        super().__init__()
        self._manager, self._worker, self._check = manager, worker, check

    def look(self) -> None:
        here = {_key(one): one for one in _list(self._manager)}
        for one in here.values():
            checks = (one.get("status") or {}).get("admissionChecks") or ()
            if self._check in [check["name"] for check in checks]:
                self._look(one)
        for copy in _list(self._worker):
            if f"{GROUP}/multikueue-origin" in copy["metadata"]["labels"] and _key(copy) not in here:
                self._remove(copy["metadata"]["namespace"], copy["metadata"]["name"])

    def _look(self, here: Json) -> None:
        namespace, name = here["metadata"]["namespace"], here["metadata"]["name"]
        [owner] = here["metadata"]["ownerReferences"]
        job = _get(self._manager, _JOBS, namespace, owner["name"])
        if job is None:
            return  # Its Workload goes, too.
        assert job["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"
        there = _get(self._worker, _WORKLOADS, namespace, name)
        if holds(here, "Finished") or not holds(here, "QuotaReserved"):
            self._remove(namespace, name)
        elif there is None:
            metadata = {"name": name, "namespace": namespace, "labels": here["metadata"].get("labels") or {}}
            metadata["labels"] |= {f"{GROUP}/multikueue-origin": "here"}
            clone = {"apiVersion": here["apiVersion"], "kind": "Workload", "metadata": metadata, "spec": here["spec"]}
            group, version, plural = _WORKLOADS
            self._worker.custom.create_namespaced_custom_object(group, version, namespace, plural, clone)
        elif holds(there, "Finished"):
            self._copy_status(job)
            self._add_condition(self._manager, here, condition(there, "Finished"))
        elif holds(here, "Evicted"):
            self._copy_status(job)
            if there["spec"].get("active", True) and not holds(there, "DeactivationTarget"):
                why = condition(here, "Evicted")
                target = why | {"type": "DeactivationTarget", "reason": "EvictedOnManagerCluster"}
                self._add_condition(self._worker, there, target)
        elif holds(there, "Admitted"):
            self._start(job, name)
            self._copy_status(job)
            self._be_ready(here)

    def _remove(self, namespace: str, workload: str) -> None:
        for kind, key in ((_JOBS, workload.removesuffix("-rljob")), (_WORKLOADS, workload)):
            if _get(self._worker, kind, namespace, key) is not None:
                self._worker.custom.delete_namespaced_custom_object(*kind[:2], namespace, kind[2], key)

    def _start(self, job: Json, workload: str) -> None:
        metadata, (group, version, plural) = job["metadata"], _JOBS
        if _get(self._worker, _JOBS, metadata["namespace"], metadata["name"]) is not None:
            return
        labels = {f"{GROUP}/prebuilt-workload-name": workload, f"{GROUP}/multikueue-origin": "here"}
        copy = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "metadata": {"name": metadata["name"], "labels": (metadata.get("labels") or {}) | labels},
            "spec": {field: value for field, value in job["spec"].items() if field != "managedBy"},
        }
        self._worker.custom.create_namespaced_custom_object(group, version, metadata["namespace"], plural, copy)

    def _copy_status(self, job: Json) -> None:
        """A merge patch from the status here to the status there."""
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        there = _get(self._worker, _JOBS, namespace, name)
        before, after = job.get("status") or {}, (there or {}).get("status")
        if after is None or before == after:
            return
        group, version, plural = _JOBS
        patch = {"status": _merge_patch(before, after)}
        self._manager.custom.patch_namespaced_custom_object_status(group, version, namespace, plural, name, patch)

    def _be_ready(self, here: Json) -> None:
        [check] = here["status"]["admissionChecks"]
        if check["state"] != "Ready":
            ready = check | {"state": "Ready", "message": 'The workload got reservation on "worker"'}
            _patch_status(self._manager, here, {"admissionChecks": [ready]})

    def _add_condition(self, cluster: Cluster, workload: Json, added: Json) -> None:
        kept = [one for one in workload["status"]["conditions"] if one["type"] != added["type"]]
        _patch_status(cluster, workload, {"conditions": [*kept, added]})


def _list(cluster: Cluster) -> list[Json]:
    group, version, plural = _WORKLOADS
    found: list[Json] = cluster.custom.list_cluster_custom_object(group, version, plural)["items"]
    return found


def _key(found: Json) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def _get(cluster: Cluster, kind: tuple[str, str, str], namespace: str, name: str) -> Json | None:
    try:
        found: Json = cluster.custom.get_namespaced_custom_object(*kind[:2], namespace, kind[2], name)
    except ApiException as error:
        if error.status == 404:
            return None
        raise
    return found


def _patch_status(cluster: Cluster, workload: Json, status: Json) -> None:
    group, version, plural = _WORKLOADS
    metadata = workload["metadata"]
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
    cluster.custom.patch_namespaced_custom_object_status(
        group, version, metadata["namespace"], plural, metadata["name"], body
    )


def _merge_patch(before: Any, after: Any) -> Any:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    changed = {
        name: _merge_patch(before.get(name), value) for name, value in after.items() if before.get(name) != value
    }
    return changed | dict.fromkeys(before.keys() - after.keys())
