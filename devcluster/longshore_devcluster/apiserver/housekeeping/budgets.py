"""Pod disruption budgets: how many pods may be evicted now."""

import math

from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.selectors import matches_labels
from longshore_devcluster.apiserver.store import Change, Record, copied
from longshore_devcluster.client.selectors import from_object
from longshore_kube.times import rfc3339

BUDGETS = "poddisruptionbudgets.policy"


def _share(value: int | str, total: int) -> int:
    """Return a count, or a percentage of ``total`` rounded up."""
    if isinstance(value, int):
        return value
    return math.ceil(int(value.rstrip("%")) * total / 100)


def desired_healthy(spec: Object, num_expected: int) -> int:
    """Return how many pods must stay healthy."""
    if spec.get("maxUnavailable") is not None:
        return max(0, num_expected - _share(spec["maxUnavailable"], num_expected))
    return _share(spec.get("minAvailable", 1), num_expected)


def _is_healthy(pod: Object) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions") or ())
    return ready and not pod["metadata"].get("deletionTimestamp")


class Budgets:
    """Keeps ``status`` of every budget that a change of budgets or pods touches."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def work(self, changes: list[Change]) -> None:
        namespaces = {c.key.namespace for c in changes if c.key.resource in (BUDGETS, "pods")}
        for record in self._objects.store.items(BUDGETS):
            if not changes or record.key.namespace in namespaces:
                self._update(record)

    def _update(self, record: Record) -> None:
        spec = record.obj.get("spec") or {}
        selector = from_object(spec.get("selector"))
        pods = [r.obj for r in self._objects.store.items("pods", record.key.namespace)]
        chosen = [p for p in pods if selector is not None and matches_labels(selector, p)]
        live = [p for p in chosen if p.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        num_expected = self._num_expected(live)
        healthy, desired = sum(map(_is_healthy, live)), desired_healthy(spec, num_expected)
        allowed = max(0, healthy - desired)
        status: Object = {
            "observedGeneration": record.obj["metadata"].get("generation", 1),
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": num_expected,
        }
        current = record.obj.get("status") or {}
        if {name: current.get(name) for name in status} != status:
            condition = {
                "type": "DisruptionAllowed",
                "status": "True" if allowed else "False",
                "observedGeneration": status["observedGeneration"],
                "lastTransitionTime": rfc3339(self._objects.now()),
                "reason": "SufficientPods" if allowed else "InsufficientPods",
                "message": "",
            }
            obj = copied(record.obj)
            obj["status"] = {**status, "conditions": [condition]}
            self._objects.store.put(record.key, obj)

    def _num_expected(self, pods: list[Object]) -> int:
        """Return the replicas that the pods' controllers want; a pod without controller counts for itself."""
        wanted: dict[str, int] = {}
        for pod in pods:
            owner = next((o for o in pod["metadata"].get("ownerReferences") or () if o.get("controller")), None)
            uid = owner["uid"] if owner else pod["metadata"]["uid"]
            wanted[uid] = self._replicas(pod["metadata"]["namespace"], owner)
        return sum(wanted.values())

    def _replicas(self, namespace: str, owner: Object | None) -> int:
        if owner is None or owner["kind"] != "ReplicaSet":
            return 1
        sets = self._objects.store.items("replicasets.apps", namespace)
        found = next((r.obj for r in sets if r.obj["metadata"]["uid"] == owner["uid"]), None)
        return int(found["spec"].get("replicas", 1)) if found else 1
