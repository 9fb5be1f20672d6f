"""`PodOptions.template`: a patch over the generated pod. What it must not ask for is in `template_rules`."""

from collections.abc import Iterator
from typing import Any, Final

from longshore_kube.quantities import parse_quantity

Json = dict[str, Any]


class _Quantity:
    """Marker in a shape for what Kubernetes accepts as an amount of a resource."""


_MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
}
"""Lists whose items are merged by a key; `tolerations` and `envFrom` are appended to, every other list is replaced."""
_APPENDED: Final = frozenset({"tolerations", "envFrom"})
_REPLACED: Final = frozenset({"readinessProbe", "livenessProbe", "startupProbe"})
"""Objects that are replaced whole: a probe has one kind of check, and two merged ones have two."""

_AMOUNTS: Final[dict[Any, Any]] = {...: _Quantity}
_RESOURCES: Final[Json] = {"requests": _AMOUNTS, "limits": _AMOUNTS}
_CHECK: Final[Json] = {"httpGet": {}, "tcpSocket": {}, "terminationGracePeriodSeconds": int}
_CONTAINER: Final[Json] = {
    "name": str,
    "image": str,
    "env": [{"name": str}],
    "envFrom": [{}],
    "ports": [{"containerPort": int}],
    "volumeMounts": [{"mountPath": str}],
    "resources": _RESOURCES,
    "securityContext": {},
    "lifecycle": {"postStart": _CHECK, "preStop": _CHECK},
    **dict.fromkeys(_REPLACED, _CHECK),
}
_SHAPE: Final[Json] = {
    "metadata": {"labels": {...: str}, "annotations": {...: str}},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [{"name": str, "projected": {"sources": [{}]}}],
        "tolerations": [{}],
        "imagePullSecrets": [{"name": str}],
        "schedulingGates": [{"name": str}],
        "resourceClaims": [{"name": str}],
        "hostAliases": [{"ip": str}],
        "nodeSelector": {...: str},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
        "resources": _RESOURCES,
        "overhead": _AMOUNTS,
        "securityContext": {},
        "terminationGracePeriodSeconds": int,
        "priorityClassName": str,
        "runtimeClassName": str,
    },
}
"""Types of what merging and the rules look into: an object by its fields (`...`: all others), a list by its items,
which have the key by which they are merged. Everything else is for the API server, when a pod is made."""
_KEPT: Final = frozenset(
    {"metadata", "metadata.labels", "metadata.annotations", "spec", "spec.containers", "spec.volumes"}
)
"""Fields that pods cannot do without: null does not remove them."""
MISSING: Final = "is missing"
"""Reason to set a field; all others are reasons to remove one."""
_WORDS: Final = {str: "a text", int: "an integer", _Quantity: "a quantity, like 500m or 2Gi"}


def misshapen(template: Json) -> list[str]:
    """Return fields of a template that are not shaped like those of a pod, as dotted paths with the reason.

    A template without any can be merged.
    """
    return list(_misshapen("", template, _SHAPE))


def _misshapen(path: str, value: Any, shape: Any) -> Iterator[str]:
    if value is None:
        if path in _KEPT:
            yield f"{path}: cannot be removed"
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{path}: must be an object"
            return
        prefix = f"{path}." if path else ""
        for field, entry in value.items():
            expected = shape.get(field, shape.get(...))
            if expected is not None:
                yield from _misshapen(prefix + field, entry, expected)
    elif isinstance(shape, list):
        yield from _misshapen_items(path, value, shape[0])
    elif not _is(value, shape):
        yield f"{path}: must be {_WORDS[shape]}"


def _is(value: Any, expected: type) -> bool:
    if isinstance(value, bool):
        return False
    if expected is not _Quantity:
        return isinstance(value, expected)
    try:
        parse_quantity(value)
    except ValueError:
        return False
    return isinstance(value, str | int | float)


def _misshapen_items(path: str, value: Any, shape: Json) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: must be a list"
        return
    key = _MERGE_KEYS.get(path.rsplit(".", 1)[-1])
    for position, item in enumerate(value):
        if not isinstance(item, dict):
            yield f"{path}[{position}]: must be an object"
        elif key is not None and item.get(key) is None:
            yield f"{path}[{position}].{key}: {MISSING}"
        else:
            yield from _misshapen(f"{path}[{item[key] if key else position}]", item, shape)


def merge(base: Any, patch: Any) -> Any:
    """Merge `patch` over `base`: objects recursively, null removes a field, named lists by name. Neither is changed."""
    if not (isinstance(base, dict) and isinstance(patch, dict)):
        return patch
    merged = dict(base)
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        elif field in _REPLACED:
            merged[field] = value
        elif field in _APPENDED and isinstance(value, list):
            merged[field] = [*merged.get(field, ()), *value]
        elif field in _MERGE_KEYS and isinstance(value, list):
            merged[field] = _merge_list(merged.get(field, []), value, _MERGE_KEYS[field])
        else:
            merged[field] = merge(merged.get(field), value) if field in merged else value
    return merged


def _merge_list(base: Any, patch: list[Any], key: str) -> list[Any]:
    if not (isinstance(base, list) and all(isinstance(item, dict) for item in (*base, *patch))):
        return patch
    merged = list(base)
    positions = {str(item.get(key)): position for position, item in enumerate(base)}
    for item in patch:
        position = positions.get(str(item.get(key)))
        if position is None:
            merged.append(item)
        else:
            merged[position] = merge(merged[position], item)
    return merged
