"""What a pod asks of a node, as Kubernetes counts it."""

from fractions import Fraction

from longshore_kube.quantities import parse_quantity
from longshore_kube.resources import Json

Resources = dict[str, Fraction]
"""Amounts by resource name: cores of cpu, bytes of memory, counts of devices."""


def pod_requests(pod: Json) -> Resources:
    """Return the largest amounts that a pod needs at any moment of its life, plus one of `pods`.

    Init containers run one after the other before the main containers; those that restart always (sidecars) keep
    running alongside all that follows (Kubernetes docs, "Sidecar containers", resource sharing).
    """
    spec = pod["spec"]
    sidecars: Resources = {}
    peak: Resources = {}
    for container in spec.get("initContainers") or []:
        own = container_requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            _raise_to(peak, sidecars)
        else:
            _raise_to(peak, _sum(sidecars, own))
    running = dict(sidecars)
    for container in spec.get("containers") or []:
        _add(running, container_requests(container))
    _raise_to(peak, running)
    _add(peak, {name: parse_quantity(amount) for name, amount in (spec.get("overhead") or {}).items()})
    peak["pods"] = Fraction(1)
    return peak


def container_requests(container: Json) -> Resources:
    """Return the requests of one container; a limit without a request is its own request."""
    resources = container.get("resources") or {}
    stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: parse_quantity(amount) for name, amount in stated.items()}


def _add(total: Resources, more: Resources) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _raise_to(total: Resources, least: Resources) -> None:
    for name, amount in least.items():
        total[name] = max(total.get(name, Fraction(0)), amount)


def _sum(left: Resources, right: Resources) -> Resources:
    total = dict(left)
    _add(total, right)
    return total
