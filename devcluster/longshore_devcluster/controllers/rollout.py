"""What a Deployment does next (Kubernetes docs, "Deployments": rolling update). Pure."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longshore_devcluster.client.objects import controller_reference, is_deleting, uid_of
from longshore_kube.resources import Json

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


@dataclass
class RolloutPlan:
    """ReplicaSets to create, rescale (with the new count), mark with a revision, and delete; then the status."""

    create: Json | None = None
    scale: list[tuple[Json, int]] = field(default_factory=list)
    revise: tuple[Json, int] | None = None
    delete: list[Json] = field(default_factory=list)
    revision: int = 0
    new: Json | None = None


def plan_rollout(deployment: Json, owned: Sequence[Json]) -> RolloutPlan:
    """Return the next step towards the deployment's template and number of replicas."""
    plan = RolloutPlan()
    if is_deleting(deployment):
        return plan
    new = find_new(deployment, owned)
    old = [entry for entry in owned if new is None or uid_of(entry) != uid_of(new)]
    plan.new = new
    plan.revision = max((revision_of(entry) for entry in old), default=0) + 1
    if new is not None:
        if revision_of(new) < plan.revision:
            plan.revise = (new, plan.revision)
        plan.revision = max(plan.revision, revision_of(new))
    _roll(plan, deployment, new, old)
    _forget_old(plan, deployment, old)
    return plan


def find_new(deployment: Json, owned: Sequence[Json]) -> Json | None:
    """Return the ReplicaSet with the deployment's present template, the oldest if there are several."""
    wanted = _comparable(deployment["spec"]["template"])
    equal = [entry for entry in owned if _comparable(entry["spec"]["template"]) == wanted]
    return min(equal, key=lambda entry: entry["metadata"].get("creationTimestamp", ""), default=None)


def revision_of(obj: Json) -> int:
    """Return the revision that an object is marked with, 0 if with none."""
    return int((obj["metadata"].get("annotations") or {}).get(REVISION) or 0)


def template_hash(template: Json) -> str:
    """Return ten characters that differ between templates, of letters and digits that form no words."""
    digest = hashlib.blake2b(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def surge_and_unavailable(deployment: Json) -> tuple[int, int]:
    """Return maxSurge and maxUnavailable in pods: percentages of the replicas, rounded up and down respectively."""
    spec = deployment["spec"]
    limits = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = _share(limits.get("maxSurge", "25%"), spec["replicas"], math.ceil)
    unavailable = _share(limits.get("maxUnavailable", "25%"), spec["replicas"], math.floor)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, unavailable


def _roll(plan: RolloutPlan, deployment: Json, new: Json | None, old: list[Json]) -> None:
    wanted = deployment["spec"]["replicas"]
    surge, unavailable = surge_and_unavailable(deployment)
    room = wanted + surge - _total(old) - (_wanted(new) if new else 0)
    if new is None:
        plan.create = _replica_set(deployment, max(0, min(wanted, room)), plan.revision)
        return
    if _wanted(new) > wanted:
        plan.scale.append((new, wanted))
    elif _wanted(new) < wanted and room > 0:
        plan.scale.append((new, _wanted(new) + min(room, wanted - _wanted(new))))
    _scale_down_old(plan, new, old, min_available=wanted - unavailable)


def _scale_down_old(plan: RolloutPlan, new: Json, old: list[Json], min_available: int) -> None:
    new_missing = _wanted(new) - _status(new, "availableReplicas")
    may_go = _total(old) + _wanted(new) - min_available - new_missing
    counts = {uid_of(entry): _wanted(entry) for entry in old}
    oldest_first = sorted(old, key=revision_of)
    # Pods that are not available can go without loss; then available ones, as long as enough remain.
    for entry in oldest_first:
        if may_go <= 0:
            break
        broken = min(may_go, max(0, counts[uid_of(entry)] - _status(entry, "availableReplicas")))
        counts[uid_of(entry)] -= broken
        may_go -= broken
    available = sum(_status(entry, "availableReplicas") for entry in [new, *old])
    spare = min(may_go, available - min_available)
    for entry in oldest_first:
        if spare <= 0:
            break
        gone = min(spare, counts[uid_of(entry)])
        counts[uid_of(entry)] -= gone
        spare -= gone
    plan.scale += [(entry, counts[uid_of(entry)]) for entry in old if counts[uid_of(entry)] != _wanted(entry)]


def _forget_old(plan: RolloutPlan, deployment: Json, old: list[Json]) -> None:
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    idle = [entry for entry in old if not _wanted(entry) and not _status(entry, "replicas") and not is_deleting(entry)]
    surplus = len(idle) - limit
    if surplus > 0:
        plan.delete += sorted(idle, key=revision_of)[:surplus]


def _replica_set(deployment: Json, replicas: int, revision: int) -> Json:
    meta, spec = deployment["metadata"], deployment["spec"]
    digest = template_hash(spec["template"])
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), HASH_LABEL: digest}
    selector = spec["selector"]
    return {
        "metadata": {
            "name": f"{meta['name']}-{digest}",
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": {REVISION: str(revision)},
            "ownerReferences": [controller_reference(deployment, "apps/v1", "Deployment")],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": {
                **selector,
                "matchLabels": {**(selector.get("matchLabels") or {}), HASH_LABEL: digest},
            },
            "template": {**spec["template"], "metadata": {**template_meta, "labels": labels}},
        },
    }


def _comparable(template: Json) -> Json:
    meta = dict(template.get("metadata") or {})
    meta["labels"] = {name: value for name, value in (meta.get("labels") or {}).items() if name != HASH_LABEL}
    meta.pop("creationTimestamp", None)
    return {**template, "metadata": {name: value for name, value in meta.items() if value}}


def _share(value: Any, replicas: int, rounding: Any) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return int(rounding(replicas * int(value[:-1]) / 100))
    return int(value)


def _total(entries: Sequence[Json]) -> int:
    return sum(_wanted(entry) for entry in entries)


def _wanted(replica_set: Json) -> int:
    return int(replica_set["spec"].get("replicas", 1))


def _status(replica_set: Json, name: str) -> int:
    return int((replica_set.get("status") or {}).get(name) or 0)
