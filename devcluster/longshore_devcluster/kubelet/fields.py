"""The downward API: values of a pod's own fields and resources, as text."""

import math
import re
from fractions import Fraction

from longshore_kube.quantities import parse_quantity
from longshore_kube.resources import Json

_SUBSCRIPT = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]")


def field_value(pod: Json, path: str) -> str:
    """Return the value of a `fieldRef.fieldPath`.

    Raises:
        ValueError: the downward API does not offer the path.
    """
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta[path.removeprefix("metadata.")])
        case "metadata.labels" | "metadata.annotations":
            entries = meta.get(path.removeprefix("metadata.")) or {}
            return "\n".join(f"{name}={_quoted(value)}" for name, value in sorted(entries.items()))
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.removeprefix("spec."), ""))
        case "status.podIP" | "status.hostIP":
            return str(status.get(path.removeprefix("status."), ""))
        case "status.podIPs" | "status.hostIPs":
            return ",".join(entry["ip"] for entry in status.get(path.removeprefix("status.")) or [])
    raise ValueError(f"fieldPath {path!r} is not offered by the downward API")


def resource_value(container: Json, reference: Json, node_allocatable: Json) -> str:
    """Return the value of a `resourceFieldRef`; a missing limit means what the node can give.

    Raises:
        ValueError: the resource cannot be read so.
    """
    kind, _, resource = reference["resource"].partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ValueError(f"resource {reference['resource']!r} must be limits.<name> or requests.<name>")
    amounts = container.get("resources") or {}
    stated = (amounts.get(kind) or {}).get(resource)
    if stated is None and kind == "limits":
        stated = node_allocatable.get(resource, 0)
    if stated is None:
        stated = (amounts.get("limits") or {}).get(resource, 0)
    divisor = parse_quantity(reference.get("divisor") or 0) or Fraction(1)
    return str(math.ceil(parse_quantity(stated) / divisor))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
