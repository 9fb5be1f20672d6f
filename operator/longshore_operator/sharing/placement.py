"""Which nodes the workers of a job that shares GPUs may have."""

from copy import deepcopy
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore_operator.identity import Identity

_NODE: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def sharing_worker(manifest: dict[str, Any], job: RLJob) -> dict[str, Any]:
    """Return a worker pod that shares nodes with workers of its group only, one of each job.

    The device plugin chooses which GPU a share belongs to. So two awake pods on a node could be on the same GPU,
    whether they belong to one job, or to groups that know nothing of each other.
    """
    if job.spec.sharing is None:
        return manifest
    identity, pod = Identity.of(job), deepcopy(manifest)
    token = names.sharing_token(identity.namespace, job.spec.sharing.group)
    pod["metadata"].setdefault("labels", {})[names.LABEL_SHARING] = token
    affinity = pod["spec"].setdefault("affinity", {})
    apart, together = affinity.setdefault("podAntiAffinity", {}), affinity.setdefault("podAffinity", {})
    other_groups = [
        {"key": names.LABEL_SHARING, "operator": "Exists"},
        {"key": names.LABEL_SHARING, "operator": "NotIn", "values": [token]},
    ]
    own_workers = {names.LABEL_JOB: identity.name, names.LABEL_COMPONENT: Component.WORKER.value}
    apart[_REQUIRED] = [
        *apart.get(_REQUIRED, ()),
        {"topologyKey": _NODE, "labelSelector": {"matchExpressions": other_groups}, "namespaceSelector": {}},
        {"topologyKey": _NODE, "labelSelector": {"matchLabels": own_workers}},
    ]
    same_group = {"topologyKey": _NODE, "labelSelector": {"matchLabels": {names.LABEL_SHARING: token}}}
    together[_PREFERRED] = [*together.get(_PREFERRED, ()), {"weight": 100, "podAffinityTerm": same_group}]
    return pod
