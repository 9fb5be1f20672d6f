"""RBAC: may a user do this? Rules come from the stored roles and bindings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from longshore_devcluster.apiserver.access.users import User
from longshore_devcluster.apiserver.errors import ApiError, ObjectRef, forbidden, not_found
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Key, Record, Store

GROUP = "rbac.authorization.k8s.io"
ROLES, CLUSTER_ROLES = f"roles.{GROUP}", f"clusterroles.{GROUP}"
BINDINGS, CLUSTER_BINDINGS = f"rolebindings.{GROUP}", f"clusterrolebindings.{GROUP}"
MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is asked for. ``resource`` is empty for a path outside the resources."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class _Grant:
    subjects: tuple[tuple[str, str, str], ...]
    rules: tuple[Object, ...]

    def reaches(self, user: User) -> bool:
        return any(_is_subject(user, *subject) for subject in self.subjects)


def _is_subject(user: User, kind: str, namespace: str, name: str) -> bool:
    if kind == "User":
        return name == user.name
    if kind == "Group":
        return name in user.groups
    return user.name == f"system:serviceaccount:{namespace}:{name}"


def rule_allows(rule: Object, asked: Attributes) -> bool:
    """Return whether one PolicyRule covers a request."""
    verbs = rule.get("verbs") or ()
    if "*" not in verbs and asked.verb not in verbs:
        return False
    if not asked.resource:
        return any(_path_matches(pattern, asked.path) for pattern in rule.get("nonResourceURLs") or ())
    groups = rule.get("apiGroups") or ()
    if "*" not in groups and asked.group not in groups:
        return False
    full = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    resources = rule.get("resources") or ()
    any_with_sub = f"*/{asked.subresource}" if asked.subresource else "*"
    if not {"*", full, any_with_sub} & set(resources):
        return False
    names = rule.get("resourceNames") or ()
    return not names or asked.name in names


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))


class Rbac:
    """Decides by the roles in the store; forgets what it has read when one of them changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cluster: list[_Grant] | None = None
        self._namespaced: dict[str, list[_Grant]] = {}
        for resource in (ROLES, CLUSTER_ROLES, BINDINGS, CLUSTER_BINDINGS):
            store.listen(resource, lambda change: self._forget())

    def _forget(self) -> None:
        self._cluster = None
        self._namespaced = {}

    def allows(self, user: User, asked: Attributes) -> bool:
        if MASTERS in user.groups:
            return True
        return any(rule_allows(rule, asked) for rule in self.rules(user, asked.namespace))

    def rules(self, user: User, namespace: str) -> Iterator[Object]:
        """Yield the rules that hold for a user in a namespace (cluster-wide ones included)."""
        for grant in (*self._cluster_grants(), *(self._grants_in(namespace) if namespace else ())):
            if grant.reaches(user):
                yield from grant.rules

    def _cluster_grants(self) -> list[_Grant]:
        if self._cluster is None:
            self._cluster = [self._grant(r.obj) for r in self._store.items(CLUSTER_BINDINGS)]
        return self._cluster

    def _grants_in(self, namespace: str) -> list[_Grant]:
        if namespace not in self._namespaced:
            found = self._store.items(BINDINGS, namespace)
            self._namespaced[namespace] = [self._grant(r.obj) for r in found]
        return self._namespaced[namespace]

    def _grant(self, binding: Object) -> _Grant:
        namespace = binding["metadata"].get("namespace", "")
        subjects = tuple((s["kind"], s.get("namespace") or namespace, s["name"]) for s in binding.get("subjects") or ())
        return _Grant(subjects, tuple(self.role_rules(binding["roleRef"], namespace)))

    def role_rules(self, role: Object, namespace: str) -> list[Object]:
        """Return the rules of a roleRef; none where the role does not exist."""
        record = self._role(role, namespace)
        return list(record.obj.get("rules") or ()) if record else []

    def _role(self, role: Object, namespace: str) -> Record | None:
        if role["kind"] == "ClusterRole":
            return self._store.get(Key(CLUSTER_ROLES, "", role["name"]))
        return self._store.get(Key(ROLES, namespace, role["name"]))

    # --- escalation

    def check_role(self, user: User, group: str, plural: str, role: Object) -> None:
        """Refuse a role with more rights than the writer has, unless they may ``escalate``. Raises 403."""
        metadata = role["metadata"]
        namespace = metadata.get("namespace", "")
        asked = Attributes("escalate", group, plural, "", namespace, metadata["name"])
        if not self.allows(user, asked):
            ref = ObjectRef(group, plural, metadata["name"])
            self._check_covers(user, namespace, role.get("rules") or (), ref)

    def check_binding(self, user: User, group: str, plural: str, binding: Object) -> None:
        """Refuse a binding to a role with more rights than the writer has, unless they may ``bind`` it.

        Raises:
            ApiError: 403, and 404 for a role that does not exist, as nobody knows its rights.
        """
        metadata, role = binding["metadata"], binding["roleRef"]
        namespace = metadata.get("namespace", "")
        role_plural = "clusterroles" if role["kind"] == "ClusterRole" else "roles"
        asked = Attributes("bind", group, role_plural, "", namespace, role["name"])
        if not self.allows(user, asked):
            if self._role(role, namespace) is None:
                raise not_found(ObjectRef(group, plural, role["name"]))
            ref = ObjectRef(group, plural, metadata["name"])
            self._check_covers(user, namespace, self.role_rules(role, namespace), ref)

    def _check_covers(self, user: User, namespace: str, rules: Iterable[Object], ref: ObjectRef) -> None:
        if MASTERS in user.groups:
            return
        own = list(self.rules(user, namespace))
        missing = [asked for rule in rules for asked in _parts(rule) if not any(_covers(mine, asked) for mine in own)]
        if missing:
            groups = " ".join(f'"{group}"' for group in user.groups)
            listed = "\n".join(_shown(rule) for rule in missing)
            raise forbidden(
                ref,
                f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently '
                f"held:\n{listed}",
            )


def _parts(rule: Object) -> Iterator[Object]:
    """Yield a rule taken apart: one verb and one resource (or path) each."""
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield {"verbs": [verb], "nonResourceURLs": [path]}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                part: Object = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                names = rule.get("resourceNames") or ()
                yield from ({**part, "resourceNames": [name]} for name in names) if names else (part,)


def _covers(mine: Object, asked: Object) -> bool:
    verb = asked["verbs"][0]
    if "nonResourceURLs" in asked:
        return rule_allows(mine, Attributes(verb, path=asked["nonResourceURLs"][0]))
    resource, _, subresource = asked["resources"][0].partition("/")
    name = (asked.get("resourceNames") or [""])[0]
    if not name and mine.get("resourceNames"):
        return False
    return rule_allows(mine, Attributes(verb, asked["apiGroups"][0], resource, subresource, "", name))


def _shown(rule: Object) -> str:
    names = ("apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs")
    heads = {"apiGroups": "APIGroups", "resources": "Resources", "resourceNames": "ResourceNames",
             "nonResourceURLs": "NonResourceURLs", "verbs": "Verbs"}  # fmt: skip
    parts = [f"{heads[n]}:[{' '.join(chr(34) + v + chr(34) for v in rule[n])}]" for n in names if n in rule]
    return "{" + ", ".join(parts) + "}"


def refusal(user: User, asked: Attributes) -> ApiError:
    """Return the 403 of a request that no rule allows."""
    if not asked.resource:
        return ApiError(403, "Forbidden", f'forbidden: User "{user.name}" cannot {asked.verb} path "{asked.path}"', {})
    full = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    scope = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {asked.verb} resource "{full}" in API group "{asked.group}" {scope}'
    ref = ObjectRef(asked.group, asked.resource, asked.name)
    error = forbidden(ref, why)
    if asked.subresource:  # the message shows the resource alone, as the real server's does
        error.details = ref.details
    return error
