"""`PodOptions.template`: a patch over the generated pod, and what it must not ask for.

Whoever may create an RLJob shall not gain more than their pods have by default; so everything is refused that would
reach the node, other identities, or the pods' bookkeeping (Pod Security Standards, level Restricted, and more).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from longshore.api.names import GROUP

_MERGE_KEYS = {
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
_APPENDED = frozenset({"tolerations", "envFrom"})
_REPLACED = frozenset({"readinessProbe", "livenessProbe", "startupProbe"})
"""Objects that are replaced whole: a probe has one kind of check, and two merged ones have two."""

_FORBIDDEN_POD_FIELDS = (
    "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "hostNetwork", "hostPID", "hostIPC",
    "restartPolicy", "hostname", "subdomain", "nodeName", "ephemeralContainers", "activeDeadlineSeconds",
)  # fmt: skip
_FORBIDDEN_POD_SECURITY = ("sysctls", "windowsOptions", "seLinuxOptions", "appArmorProfile", "seccompProfile")
_ALLOWED_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
_FORBIDDEN_CONTAINER_SECURITY = (
    "privileged", "allowPrivilegeEscalation", "capabilities", "procMount", "seccompProfile", "seLinuxOptions",
    "appArmorProfile", "windowsOptions",
)  # fmt: skip


def merge(base: Any, patch: Any) -> Any:
    """`patch` over `base`: objects recursively, null removes a field, named lists by name. Neither is changed."""
    if not (isinstance(base, dict) and isinstance(patch, dict)):
        return patch
    merged = dict(base)
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        elif field in _REPLACED:
            merged[field] = value
        elif field in _APPENDED:
            merged[field] = [*merged.get(field, ()), *value]
        elif field in _MERGE_KEYS and isinstance(value, list):
            merged[field] = _merge_list(merged.get(field, []), value, _MERGE_KEYS[field])
        else:
            merged[field] = merge(merged.get(field), value) if field in merged else value
    return merged


def _merge_list(base: list[dict[str, Any]], patch: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    merged = list(base)
    positions = {item.get(key): position for position, item in enumerate(base)}
    for item in patch:
        position = positions.get(item.get(key))
        if position is None:
            merged.append(item)
        else:
            merged[position] = merge(merged[position], item)
    return merged


def refusals(template: Mapping[str, Any]) -> list[str]:
    """Fields of a template that would escalate or take the pod from the operator, as dotted paths with the reason."""
    return list(_refusals(template))


def _refusals(template: Mapping[str, Any]) -> Iterator[str]:
    try:
        yield from _metadata_refusals(template)
        yield from _spec_refusals(template.get("spec") or {})
    except (AttributeError, TypeError):
        yield "the template is not shaped like a pod: compare it with `kubectl explain pod`"


def _metadata_refusals(template: Mapping[str, Any]) -> Iterator[str]:
    for field in template:
        if field not in ("metadata", "spec"):
            yield f"{field}: a template has metadata and spec only"
    for field, entries in (template.get("metadata") or {}).items():
        if field not in ("labels", "annotations"):
            yield f"metadata.{field}: only labels and annotations can be set"
            continue
        for name in entries or ():
            if name.split("/")[0].endswith(GROUP) or name.startswith("app.kubernetes.io/"):
                yield f"metadata.{field}[{name}]: is set by the operator"


def _spec_refusals(spec: Mapping[str, Any]) -> Iterator[str]:
    for field in _FORBIDDEN_POD_FIELDS:
        if field in spec:
            yield f"spec.{field}: is not for a template"
    security = spec.get("securityContext") or {}
    yield from _user_refusals("spec.securityContext", security)
    if "securityContext" in spec and not isinstance(spec["securityContext"], dict):
        yield "spec.securityContext: cannot be removed"
    for field in _FORBIDDEN_POD_SECURITY:
        if field in security:
            yield f"spec.securityContext.{field}: is not for a template"
    for volume in spec.get("volumes") or ():
        yield from _volume_refusals(volume)
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            yield from _container_refusals(f"spec.{kind}[{container.get('name')}]", kind, container)


def _volume_refusals(volume: Mapping[str, Any]) -> Iterator[str]:
    for source in volume:
        if source != "name" and source not in _ALLOWED_VOLUMES:
            yield f"spec.volumes[{volume.get('name')}].{source}: reaches outside the pod"
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            yield f"spec.volumes[{volume.get('name')}].projected.serviceAccountToken: is another identity"


def _container_refusals(path: str, kind: str, container: Mapping[str, Any]) -> Iterator[str]:
    security = container.get("securityContext")
    if "securityContext" in container and not isinstance(security, dict):
        yield f"{path}.securityContext: cannot be removed"
        return
    yield from _user_refusals(f"{path}.securityContext", security or {})
    for field in _FORBIDDEN_CONTAINER_SECURITY:
        if field in (security or {}):
            yield f"{path}.securityContext.{field}: is not for a template"
    for port in container.get("ports") or ():
        if "hostPort" in port:
            yield f"{path}.ports[{port.get('containerPort')}].hostPort: opens the node"


def _user_refusals(path: str, security: Mapping[str, Any]) -> Iterator[str]:
    if "runAsNonRoot" in security and security["runAsNonRoot"] is not True:
        yield f"{path}.runAsNonRoot: must stay true"
    if security.get("runAsUser", 1) == 0:
        yield f"{path}.runAsUser: must not be 0 (root)"
