"""Place actors: in which pod they run, and on which of its GPUs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from longshore.api import contract, names
from longshore.api.names import Component


@dataclass(frozen=True)
class ActorPlacement:
    """Options of Ray that pin an actor to a pod, and variables that pin it to GPUs there.

    The variables are the first argument of every actor and task that is placed, which puts them into its environment
    before anything else (`set_environment`): CUDA reads them when it is first used. A `runtime_env` of Ray would set
    them earlier, but needs an agent in every pod (see `ray_start`).
    """

    options: Mapping[str, Any]
    environment: Mapping[str, str]

    def remote(self, target: Any, *arguments: Any) -> Any:
        """Start an actor or a task here."""
        return target.options(**self.options).remote(self.environment, *arguments)


def placement(
    index: int,
    *,
    gpus: Sequence[int] = (),
    component: Component = Component.WORKER,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> ActorPlacement:
    """Place an actor in pod `index`. Ray counts neither CPUs nor GPUs: who holds a GPU changes within a round."""
    return ActorPlacement(
        {"num_cpus": 0, "label_selector": node_labels(component, index)},
        {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), **environment},
    )


def node_labels(component: Component, index: int) -> dict[str, str]:
    """Return labels of a pod's Ray node: those of the pod itself."""
    return {names.LABEL_COMPONENT: component.value, names.LABEL_INDEX: str(index)}


def set_environment(environment: Mapping[str, str]) -> None:
    """Pin this process to its GPUs, and let it import the user's modules where its pod has them."""
    os.environ.update(environment)
    if directory := os.environ.get(contract.ENV_MODULES):
        sys.path.append(directory)  # Last: a file named as a package must not take its place.
