"""Try an objective of the user's own in a pod that trains, which has its Python files and packages."""

from collections.abc import Mapping
from typing import Final

import ray

from longshore.api.objectives.custom import Custom
from longshore_runtime.cluster.actors import Check, checked_get
from longshore_runtime.cluster.placement import placement, set_environment
from longshore_runtime.errors import UserError
from longshore_runtime.places import Place

_LIMIT_S: Final = 24 * 3600.0
"""Seconds to wait for the pod, which may wait for GPUs that others hold."""


@ray.remote(num_cpus=0)
def _mistake(environment: Mapping[str, str], objective: Custom) -> str | None:
    set_environment(environment)
    from longshore_runtime.backends.objective_trial import objective_mistake

    return objective_mistake(objective)


def check_objective(objective: Custom, place: Place, check: Check) -> None:
    """Wait for the pod, and raise UserError if the objective cannot be trained with; `check` may end the wait."""
    pod = placement(place.worker, component=place.component)
    if (mistake := checked_get(pod.remote(_mistake, objective), _LIMIT_S, check)) is not None:
        raise UserError(mistake)
