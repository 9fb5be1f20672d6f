"""What a new cluster holds: namespaces, default roles and bindings, priority classes."""

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.request import WriteOptions
from longshore_devcluster.apiserver.resources import Registry
from longshore_devcluster.apiserver.schema.node import Object

_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_OPTIONS = WriteOptions("kube-apiserver")
_AGGREGATE = f"{_RBAC}/aggregate-to-"

_READABLE = [
    "configmaps", "persistentvolumeclaims", "persistentvolumeclaims/status", "pods", "pods/log",
    "pods/status", "services", "services/status", "serviceaccounts", "events", "namespaces", "namespaces/status",
    "bindings",
]  # fmt: skip
_EDITABLE = [
    "configmaps", "persistentvolumeclaims", "pods", "pods/eviction", "secrets", "serviceaccounts", "services",
]  # fmt: skip
_GROUPS = {
    "discovery.k8s.io": ["endpointslices"],
    "apps": ["deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/scale"],
    "networking.k8s.io": ["networkpolicies"],
    "policy": ["poddisruptionbudgets", "poddisruptionbudgets/status"],
}


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}


def _paths(*paths: str) -> Object:
    return {"nonResourceURLs": list(paths), "verbs": ["get"]}


_ALL: Object = _rule(["*"], ["*"], ["*"])
_HEALTH = ("/healthz", "/livez", "/readyz", "/version", "/version/")
_DISCOVERY = _paths(
    "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version",
    "/version/",
)  # fmt: skip

_VIEW = [_rule([""], _READABLE, _READ), *(_rule([g], names, _READ) for g, names in _GROUPS.items())]
_EDIT = [
    _rule([""], [*_EDITABLE, "secrets"], _READ),
    _rule([""], ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy"], ["get", "create"]),
    _rule([""], _EDITABLE, _WRITE),
    _rule([""], ["events"], ["create", "patch", "update"]),
    _rule([""], ["serviceaccounts/token"], ["create"]),
    *(_rule([g], names, _WRITE) for g, names in _GROUPS.items()),
    _rule(["coordination.k8s.io"], ["leases"], [*_READ, *_WRITE]),
]
_ADMIN = [
    _rule([_RBAC], ["rolebindings", "roles"], [*_READ, *_WRITE]),
]

_ROLES: dict[str, list[Object]] = {
    "cluster-admin": [_ALL, {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    "system:discovery": [_DISCOVERY],
    "system:public-info-viewer": [_paths(*_HEALTH)],
    "system:basic-user": [
        _rule(["authorization.k8s.io"], ["selfsubjectaccessreviews"], ["create"]),
        _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
    ],
    "system:kube-scheduler": [
        _rule([""], ["pods", "nodes", "namespaces", "persistentvolumeclaims", "persistentvolumes"], _READ),
        _rule([""], ["pods"], ["delete"]),
        _rule([""], ["pods/binding", "bindings"], ["create"]),
        _rule([""], ["pods/status"], ["patch", "update"]),
        _rule([""], ["events"], ["create", "patch", "update"]),
        _rule(["coordination.k8s.io"], ["leases"], [*_READ, "create", "patch", "update"]),
        _rule(["scheduling.k8s.io", "storage.k8s.io", "apps", "policy"], ["*"], _READ),
    ],
    "system:kube-controller-manager": [_ALL, _paths("*")],
    "system:node": [
        _rule([""], ["services", "configmaps", "secrets", "persistentvolumeclaims",
                     "persistentvolumes", "namespaces", "serviceaccounts"], _READ),
        _rule([""], ["nodes", "pods"], [*_READ, "create", "delete", "patch", "update"]),
        _rule([""], ["nodes/status", "pods/status"], ["patch", "update"]),
        _rule([""], ["serviceaccounts/token"], ["create"]),
        _rule([""], ["events"], ["create", "patch", "update"]),
        _rule(["coordination.k8s.io"], ["leases"], [*_READ, *_WRITE]),
    ],
}  # fmt: skip

_BINDINGS = {
    "cluster-admin": ["system:masters"],
    "system:discovery": ["system:authenticated"],
    "system:public-info-viewer": ["system:authenticated", "system:unauthenticated"],
    "system:basic-user": ["system:authenticated"],
    "system:node": ["system:nodes"],
}
_USER_BINDINGS = ("system:kube-scheduler", "system:kube-controller-manager")


def _named(kind: str, name: str, **rest: object) -> Object:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": {"name": name, "labels": labels}, **rest}


def _role_ref(name: str) -> Object:
    return {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name}


def _aggregated(name: str, parts: tuple[str, ...], rules: list[Object]) -> list[Object]:
    """Return a role whose rules are collected by label, and the system's own contribution to it."""
    selectors = [{"matchLabels": {f"{_AGGREGATE}{name}": "true"}}]
    whole = _named("ClusterRole", name, aggregationRule={"clusterRoleSelectors": selectors}, rules=[])
    own = _named("ClusterRole", f"system:aggregate-to-{name}", rules=rules)
    own["metadata"]["labels"][f"{_AGGREGATE}{name}"] = "true"
    for part in parts:  # a view rule is also an edit rule: the wider roles aggregate the narrower ones
        whole["metadata"]["labels"][f"{_AGGREGATE}{part}"] = "true"
    return [whole, own]


def default_objects() -> list[tuple[str, str, str, Object]]:
    """Return (group, plural, namespace, object) of everything a new cluster holds."""
    found: list[tuple[str, str, str, Object]] = [
        ("", "namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in ("default", "kube-system", "kube-public", "kube-node-lease")
    ]
    roles = [_named("ClusterRole", name, rules=rules) for name, rules in _ROLES.items()]
    roles += _aggregated("view", ("edit",), _VIEW)
    roles += _aggregated("edit", ("admin",), _EDIT)
    roles += _aggregated("admin", (), _ADMIN)
    found += [(_RBAC, "clusterroles", "", role) for role in roles]
    for name, groups in _BINDINGS.items():
        subjects: list[Object] = [{"apiGroup": _RBAC, "kind": "Group", "name": group} for group in groups]
        binding = _named("ClusterRoleBinding", name, subjects=subjects, roleRef=_role_ref(name))
        found.append((_RBAC, "clusterrolebindings", "", binding))
    for name in _USER_BINDINGS:
        subjects = [{"apiGroup": _RBAC, "kind": "User", "name": name}]
        binding = _named("ClusterRoleBinding", name, subjects=subjects, roleRef=_role_ref(name))
        found.append((_RBAC, "clusterrolebindings", "", binding))
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        priority = {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value,
        }  # fmt: skip
        found.append(("scheduling.k8s.io", "priorityclasses", "", priority))
    return found


def bootstrap(objects: Objects, registry: Registry) -> None:
    """Create what is missing; leave what is there alone."""
    for group, plural, namespace, obj in default_objects():
        resource = registry.find(group, "v1", plural)
        assert resource is not None, plural
        if objects.store.get(resource.key(namespace, obj["metadata"]["name"])) is None:
            try:
                objects.create(resource, namespace, obj, _OPTIONS)
            except ApiError as error:
                raise AssertionError(f"{plural} {obj['metadata']['name']}: {error.status()}") from error
