"""Which nodes pods may have that ask for shares of GPUs."""

from copy import deepcopy
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.sharing import SHARES_SUFFIX
from longshore_operator.identity import Identity
from longshore_operator.pod_requests import requests

_NODE: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def placed_by_shares(manifest: dict[str, Any], component: Component, job: RLJob) -> dict[str, Any]:
    """Return a pod that has no GPU in common with a member of a sharing group, unless it is one itself."""
    if job.spec.sharing is not None and component is Component.WORKER:
        return sharing_worker(manifest, job)
    if not _asks_for_shares(manifest):
        return manifest
    pod = deepcopy(manifest)
    members = {"matchExpressions": [{"key": names.LABEL_SHARING, "operator": "Exists"}]}
    _keep_apart(pod, {"topologyKey": _NODE, "labelSelector": members, "namespaceSelector": {}})
    return pod


def _asks_for_shares(manifest: dict[str, Any]) -> bool:
    return any(name.endswith(SHARES_SUFFIX) and amount for name, amount in requests(manifest["spec"]).items())


def sharing_worker(manifest: dict[str, Any], job: RLJob) -> dict[str, Any]:
    """Return a worker pod that shares nodes with workers of its group only, one of each job.

    The device plugin chooses which GPU a share belongs to. So two awake pods on a node could be on the same GPU,
    whether they belong to one job, or to groups that know nothing of each other.
    """
    assert job.spec.sharing is not None, "it is a member"
    identity, pod = Identity.of(job), deepcopy(manifest)
    token = names.sharing_token(identity.namespace, job.spec.sharing.group)
    if not job.spec.workers.gpus_per_pod and not _asks_for_shares(manifest):
        # It keeps nobody from a node. Other pods would be kept from it by a label.
        pod["metadata"].setdefault("annotations", {})[names.LABEL_SHARING] = token
        return pod
    pod["metadata"].setdefault("labels", {})[names.LABEL_SHARING] = token
    other_groups = [
        {"key": names.LABEL_SHARING, "operator": "Exists"},
        {"key": names.LABEL_SHARING, "operator": "NotIn", "values": [token]},
    ]
    own_workers = {names.LABEL_JOB: identity.name, names.LABEL_COMPONENT: Component.WORKER.value}
    _keep_apart(
        pod,
        {"topologyKey": _NODE, "labelSelector": {"matchExpressions": other_groups}, "namespaceSelector": {}},
        {"topologyKey": _NODE, "labelSelector": {"matchLabels": own_workers}},
    )
    same_group = {"topologyKey": _NODE, "labelSelector": {"matchLabels": {names.LABEL_SHARING: token}}}
    together = pod["spec"]["affinity"].setdefault("podAffinity", {})
    together[_PREFERRED] = [*together.get(_PREFERRED, ()), {"weight": 100, "podAffinityTerm": same_group}]
    return pod


def _keep_apart(pod: dict[str, Any], *terms: dict[str, Any]) -> None:
    apart = pod["spec"].setdefault("affinity", {}).setdefault("podAntiAffinity", {})
    apart[_REQUIRED] = [*apart.get(_REQUIRED, ()), *terms]
