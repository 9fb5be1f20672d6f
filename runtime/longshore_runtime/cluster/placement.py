"""Where actors run: options for Ray that pin an actor to a pod and to GPUs in it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from longshore.api import names
from longshore.api.names import Component


def node_labels(component: Component, index: int) -> dict[str, str]:
    """Labels of a pod's Ray node: those of the pod itself."""
    return {names.LABEL_COMPONENT: component.value, names.LABEL_INDEX: str(index)}


def placement(
    index: int,
    *,
    gpus: Sequence[int] = (),
    component: Component = Component.WORKER,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Actor options for pod `index`. Ray counts neither CPUs nor GPUs: who holds a GPU changes within a round."""
    return {
        "num_cpus": 0,
        "label_selector": node_labels(component, index),
        "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), **environment}},
    }
