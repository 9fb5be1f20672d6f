"""Jobs whose volume only one node can mount: which node that is, and how all of their pods get there."""

from collections.abc import Sequence
from typing import Any, Final

from longshore.api import names
from longshore.api.names import Component
from longshore.api.pods import AccessMode, PodOptions, Storage, Workers
from longshore.api.rljob import RLJob
from longshore_operator.identity import Identity
from longshore_operator.observed import PodView

_NODE: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def placed(options: PodOptions, component: Component, workers: Workers, storage: Storage) -> PodOptions:
    """Return the options of a pod, with those of the workers where it has none of its own and must be on their node.

    The coordinator is created first, alone, and its node decides where the volume is: it has to be one for workers.
    """
    if not _is_on_one_node(storage):
        return options
    selector, tolerations = _nodes_of(workers)
    fields: dict[str, Any] = {"tolerations": options.tolerations or tolerations}
    if component is Component.COORDINATOR:
        fields["node_selector"] = options.node_selector or selector
    return options.model_copy(update=fields)


def _nodes_of(workers: Workers) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the node selector and the tolerations of workers, with those of their template."""
    spec = workers.template.get("spec")
    template = spec if isinstance(spec, dict) else {}
    # Another shape is refused with the pods that have it.
    selector, tolerations = template.get("nodeSelector"), template.get("tolerations")
    more = selector if isinstance(selector, dict) else {}
    others = tolerations if isinstance(tolerations, list) else []
    return {**workers.node_selector, **more}, workers.tolerations + [one for one in others if isinstance(one, dict)]


def advice(job: RLJob, pods: Sequence[PodView], pod: PodView) -> str:
    """Return why no node fits a pod that must be where the coordinator is, and what to do; else nothing."""
    coordinator = next((one for one in pods if one.component is Component.COORDINATOR and one.node), None)
    if coordinator is None or pod.component is Component.COORDINATOR or not _is_on_one_node(job.spec.storage):
        return ""
    return (
        f"; its volume is ReadWriteOnce, so all pods must be on {coordinator.node}, where the coordinator is: set "
        "spec.workers.nodeSelector to nodes that have room for all of them, or take a volume that is ReadWriteMany"
    )


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
