"""Merge the user's template into a pod without giving up what isolates the pod and ties it to its job."""

from typing import Any

from longshore.api import contract
from longshore.api.pods import PodOptions
from longshore_operator import template
from longshore_operator.config import OperatorConfig
from longshore_operator.template_rules import MESH_LABELS

_CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_RESTRICTED_POD: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
"""Part of the security context that a template cannot change, unless privileged templates are allowed."""
_OWN_FIELDS = (
    "restartPolicy", "hostname", "subdomain", "serviceAccountName", "automountServiceAccountToken",
    "enableServiceLinks",
)  # fmt: skip
"""Fields of a pod that only the operator sets, with the same exception."""
_NODE_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "nodeName", "priority")
"""Fields of pods that share more with their node or preempt other pods; the operator's own pods have none of them."""
_RESTARTS = ("restartPolicy", "restartPolicyRules")
"""Fields by which a container restarts in place; init containers with them run beside the others."""
_POWERS = ("privileged", "procMount", "capabilities")
"""Fields of a container's security context that give it power over its node."""


def pod_security(user: int | None) -> dict[str, Any]:
    """Return the security context of a pod. Its volumes are made writable for its group."""
    ids = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {**_RESTRICTED_POD, **ids, "fsGroupChangePolicy": "OnRootMismatch"}


def with_template(
    pod: dict[str, Any], config: OperatorConfig, options: PodOptions, requests: dict[str, str]
) -> dict[str, Any]:
    """Merge the user's template into a pod, then restore what makes the pod the job's and isolates it from its node.

    `template_rules` refuses templates that ask for more; this second check does not rely on it. Containers that a
    template adds get the restricted security context, too. `requests` are defaults for the main container.
    """
    own, resources = pod["metadata"], pod["spec"]["containers"][0]["resources"]
    merged: dict[str, Any] = template.merge(pod, options.template)
    metadata = merged["metadata"] | {field: own[field] for field in ("name", "namespace", "ownerReferences")}
    metadata["labels"] = metadata["labels"] | {
        name: value for name, value in own["labels"].items() if name not in MESH_LABELS
    }
    spec = dict(merged["spec"])
    privileged = config.allow_privileged_templates
    if not privileged:
        spec = {
            field: value
            for field, value in spec.items()
            if field not in _OWN_FIELDS and (field not in _NODE_FIELDS or value is False)
        }
        spec |= {field: pod["spec"][field] for field in _OWN_FIELDS if field in pod["spec"]}
        spec["securityContext"] = spec["securityContext"] | _RESTRICTED_POD
    for kind in ("containers", "initContainers"):
        if spec.get(kind):
            spec[kind] = [_restricted(container, privileged, kind == "initContainers") for container in spec[kind]]
    for container in spec["containers"]:
        if container["name"] != contract.CONTAINER:
            continue
        if "resources" in container:
            container["resources"] = _with_requests(container["resources"], requests, resources, spec)
        container["env"] = _with_attempt(container.get("env") or [], pod["spec"]["containers"][0]["env"])
    return merged | {"metadata": metadata, "spec": spec}


def _with_attempt(env: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the environment with the attempt of the pod, which its labels may not say for ever."""
    attempt = [one for one in own if one["name"] == contract.ENV_ATTEMPT]
    return env if attempt[0] in env else [*(one for one in env if one["name"] != contract.ENV_ATTEMPT), *attempt]


def _restricted(container: dict[str, Any], privileged: bool, is_init: bool) -> dict[str, Any]:
    requested = container.get("securityContext") or {}
    if privileged:
        return container | {"securityContext": template.merge(_CONTAINER_SECURITY, requested)}
    kept = {field: value for field, value in requested.items() if field not in _POWERS}
    if not is_init:
        container = {field: value for field, value in container.items() if field not in _RESTARTS}
    return container | {"securityContext": kept | _CONTAINER_SECURITY}


def _with_requests(
    resources: dict[str, Any], requests: dict[str, str], own: dict[str, Any], spec: dict[str, Any]
) -> dict[str, Any]:
    """Add missing requests. A request is at most the user's limit: the API server refuses a larger one.

    The pod's own memory limit becomes what the template requests, and makes way for a limit of the pod as a whole.

    Args:
        own: resources of the container before the template was merged.
    """
    limits, given = dict(resources.get("limits") or {}), resources.get("requests") or {}
    own_limits, own_requests = own.get("limits", {}), own.get("requests", {})
    added = {name: value for name, value in requests.items() if limits.get(name) in (None, own_limits.get(name))}
    requested = given.get("memory", own_requests.get("memory"))
    if limits.get("memory") is not None and limits["memory"] == own_limits.get("memory"):
        if _limits_memory(spec.get("resources") or {}):
            del limits["memory"]
        elif requested != own_requests.get("memory"):
            limits["memory"] = requested
    kept = {field: value for field, value in resources.items() if field != "limits"}
    return kept | ({"limits": limits} if limits else {}) | {"requests": added | given}


def _limits_memory(whole: dict[str, Any]) -> bool:
    """Return whether the resources of a pod as a whole limit its memory."""
    return (whole.get("limits") or {}).get("memory") is not None
