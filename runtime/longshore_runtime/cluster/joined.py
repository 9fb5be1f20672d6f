"""Which pods of a job have joined its Ray cluster."""

import time
from collections.abc import Callable
from typing import Final

import ray

from longshore.api.names import Component
from longshore_runtime.cluster.placement import node_labels

_LOOK_S: Final = 0.5


def wait_for_pods(component: Component, num_pods: int, check: Callable[[], None]) -> None:
    """Wait until the first `num_pods` pods of a component have joined, or until `check` raises."""
    wanted = [node_labels(component, index) for index in range(num_pods)]
    while not all(_has_joined(labels) for labels in wanted):
        check()
        time.sleep(_LOOK_S)


def _has_joined(labels: dict[str, str]) -> bool:
    return any(node["Alive"] and labels.items() <= node["Labels"].items() for node in ray.nodes())
