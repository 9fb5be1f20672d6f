"""Jobs whose volume only one node can mount: which node that is, and how all of their pods get there."""

from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.pods import AccessMode, PodOptions, Storage, Workers
from longshore.api.rljob import RLJob
from longshore_operator.identity import Identity

_NODE: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def placed(options: PodOptions, component: Component, workers: Workers, storage: Storage) -> PodOptions:
    """Return the options of a pod, with those of the workers where it has none of its own and must be on their node.

    The coordinator is created first, alone, and its node decides where the volume is: it has to be one for workers.
    """
    if not _is_on_one_node(storage):
        return options
    fields: dict[str, Any] = {"tolerations": options.tolerations or workers.tolerations}
    if component is Component.COORDINATOR:
        fields["node_selector"] = options.node_selector or workers.node_selector
    return options.model_copy(update=fields)


def follow_coordinator(pod: dict[str, Any], job: RLJob) -> None:
    """Require the node of the coordinator for another pod, which could not mount the volume on any other."""
    if not _is_on_one_node(job.spec.storage):
        return
    coordinator = {names.LABEL_JOB: Identity.of(job).name, names.LABEL_COMPONENT: Component.COORDINATOR.value}
    term = {"topologyKey": _NODE, "labelSelector": {"matchLabels": coordinator}}
    together = pod["spec"].setdefault("affinity", {}).setdefault("podAffinity", {})
    together[_REQUIRED] = [*together.get(_REQUIRED, ()), term]


def _is_on_one_node(storage: Storage) -> bool:
    return storage.create is not None and storage.create.access_mode is AccessMode.READ_WRITE_ONCE
