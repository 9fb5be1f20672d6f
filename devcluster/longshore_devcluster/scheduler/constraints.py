"""Whether a node is eligible for a pod, apart from room: selectors, affinity and taints."""

from collections.abc import Sequence

from longshore_devcluster.client.selectors import Requirement, selector_matches
from longshore_kube.resources import Json

_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


def refusal(pod: Json, node: Json) -> str | None:
    """Return why this node cannot take this pod whatever room it has, in kube-scheduler's words; None when it can."""
    spec = pod["spec"]
    wanted = spec.get("nodeName")
    if wanted and wanted != node["metadata"]["name"]:
        return "node(s) didn't match the requested node name"
    if node["spec"].get("unschedulable") and not tolerates(spec, _UNSCHEDULABLE_TAINT):
        return "node(s) were unschedulable"
    for taint in node["spec"].get("taints") or []:
        if taint.get("effect") in _HARD_EFFECTS and not tolerates(spec, taint):
            return "node(s) had untolerated taint(s)"
    if not _selected(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


def tolerates(spec: Json, taint: Json) -> bool:
    """Return whether one of the pod's tolerations covers a taint."""
    return any(_covers(toleration, taint) for toleration in spec.get("tolerations") or [])


def _covers(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _selected(spec: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or node_selector_matches(required, node)


def node_selector_matches(selector: Json, node: Json) -> bool:
    """Return whether a node satisfies at least one term of a node selector. An empty term matches nothing."""
    return any(_term_matches(term, node) for term in selector.get("nodeSelectorTerms") or [])


def _term_matches(term: Json, node: Json) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    labels = node["metadata"].get("labels") or {}
    named = {"metadata.name": node["metadata"]["name"]}
    return all(Requirement.of(entry).matches(labels) for entry in expressions) and all(
        Requirement.of(entry).matches(named) for entry in fields
    )


def anti_affinity_refusal(pod: Json, node: Json, placed: Sequence[tuple[Json, Json]]) -> str | None:
    """Return why required pod (anti-)affinity forbids a node. `placed` holds every running pod with its node."""
    affinity = pod["spec"].get("affinity") or {}
    for term in _required(affinity, "podAntiAffinity"):
        if any(_same_domain(term, pod, node, other, place) for other, place in placed):
            return "node(s) didn't match pod anti-affinity rules"
    for term in _required(affinity, "podAffinity"):
        if any(_same_domain(term, pod, node, other, place) for other, place in placed):
            continue
        nobody = not any(_selects(term, pod, other) for other, _ in placed)
        # The first pod of a group that attracts itself may go anywhere that has the domain.
        if nobody and _selects(term, pod, pod) and _domain(term, node) is not None:
            continue
        return "node(s) didn't match pod affinity rules"
    for other, place in placed:
        for term in _required(other["spec"].get("affinity") or {}, "podAntiAffinity"):
            if _selects(term, other, pod) and _domain(term, node) == _domain(term, place) is not None:
                return "node(s) didn't satisfy existing pods anti-affinity rules"
    return None


def _required(affinity: Json, kind: str) -> list[Json]:
    return (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []


def _same_domain(term: Json, pod: Json, node: Json, other: Json, place: Json) -> bool:
    domain = _domain(term, node)
    return domain is not None and domain == _domain(term, place) and _selects(term, pod, other)


def _selects(term: Json, pod: Json, other: Json) -> bool:
    namespaces = term.get("namespaces") or [pod["metadata"].get("namespace")]
    every = term.get("namespaceSelector") == {}
    return (every or other["metadata"].get("namespace") in namespaces) and selector_matches(
        term.get("labelSelector"), other["metadata"].get("labels")
    )


def _domain(term: Json, node: Json) -> str | None:
    value = (node["metadata"].get("labels") or {}).get(term["topologyKey"])
    return None if value is None else str(value)
