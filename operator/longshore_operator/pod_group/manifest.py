"""The PodGroup of a job: how many pods start together, and what they request."""

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.scheduling import PodGroupKind
from longshore_kube.quantities import to_quantity
from longshore_operator.fingerprint import fingerprint
from longshore_operator.identity import ANNOTATION_FINGERPRINT, Identity
from longshore_operator.plan import OperatorConfig
from longshore_operator.pod_group.api import APIS
from longshore_operator.pod_requests import requests
from longshore_operator.pod_sets import PodSet, pod_sets


def pod_group(job: RLJob, config: OperatorConfig, num_workers: int) -> dict[str, Any]:
    """Build the PodGroup of a job that needs so many workers to start.

    The coordinator is not a member: the other pods are created when it has an address, and it holds no GPU.
    """
    kind, identity = job.spec.scheduling.pod_group, Identity.of(job)
    assert kind is not None, "the job wants a PodGroup"
    members = {
        one.name: (num_workers if one.component is Component.WORKER else one.num_least, one)
        for one in pod_sets(job, config)
        if one.component is not Component.COORDINATOR
    }
    spec = _spec(job, kind, list(members.values()))
    metadata = identity.metadata(names.pod_group(identity.name))
    metadata["annotations"] = {ANNOTATION_FINGERPRINT: fingerprint(spec)}
    api = APIS[kind]
    return {"apiVersion": f"{api.group}/{api.version}", "kind": "PodGroup", "metadata": metadata, "spec": spec}


def _spec(job: RLJob, kind: PodGroupKind, members: list[tuple[int, PodSet]]) -> dict[str, Any]:
    count = sum(num for num, _ in members)
    if kind is PodGroupKind.KUBERNETES:
        return {"schedulingPolicy": {"gang": {"minCount": count}}}
    spec: dict[str, Any] = {"minMember": count, "minResources": _total(members)}
    if kind is PodGroupKind.VOLCANO:
        worker = next(one.pod["spec"] for _, one in members if one.component is Component.WORKER)
        priority_class = worker.get("priorityClassName")
        queue = job.spec.scheduling.queue
        spec |= {"queue": queue} if queue is not None else {}
        spec |= {"priorityClassName": priority_class} if priority_class else {}
    return spec


def _total(members: Iterable[tuple[int, PodSet]]) -> dict[str, str]:
    total: dict[str, Fraction] = defaultdict(Fraction)
    for count, one in members:
        for resource, amount in requests(one.pod["spec"]).items():
            total[resource] += count * amount
    return {resource: to_quantity(amount) for resource, amount in sorted(total.items()) if amount}
