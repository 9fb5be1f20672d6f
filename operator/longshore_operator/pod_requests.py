"""Compute what the scheduler counts for a pod."""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from longshore_kube.quantities import parse_quantity


def requests(pod: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return the amounts that a pod requests, by resource.

    They are those of the pod as a whole if it names any, and else those of its containers and sidecars together or of
    its largest init container.
    """
    sidecars: dict[str, Fraction] = defaultdict(Fraction)
    peak: dict[str, Fraction] = defaultdict(Fraction)
    for container in pod.get("initContainers") or ():
        is_sidecar = container.get("restartPolicy") == "Always"
        for resource, amount in _requested(container).items():
            peak[resource] = max(peak[resource], sidecars[resource] + amount)
            sidecars[resource] += amount if is_sidecar else 0
    for container in pod["containers"]:
        for resource, amount in _requested(container).items():
            sidecars[resource] += amount
    counted = {resource: max(sidecars[resource], peak[resource]) for resource in sidecars.keys() | peak.keys()}
    whole = pod.get("resources") or {}
    counted = _amounts(whole.get("limits") or {}) | counted | _amounts(whole.get("requests") or {})
    overhead = _amounts(pod.get("overhead") or {})
    return {
        resource: counted.get(resource, Fraction(0)) + overhead.get(resource, 0)
        for resource in counted.keys() | overhead.keys()
    }


def _requested(container: Mapping[str, Any]) -> dict[str, Fraction]:
    """Requests of a container; a limit without a request is one."""
    resources = container.get("resources") or {}
    given = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return _amounts(given)


def _amounts(given: Mapping[str, Any]) -> dict[str, Fraction]:
    """Null is none."""
    return {resource: parse_quantity(value) for resource, value in given.items() if value is not None}
