"""Admission: what the server adds to new pods, and the checks that depend on who is asking."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from longshore_devcluster.apiserver.access import rbac as rbac_module
from longshore_devcluster.apiserver.access.rbac import MASTERS, Rbac
from longshore_devcluster.apiserver.access.users import User
from longshore_devcluster.apiserver.errors import ObjectRef, forbidden, invalid
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.policies import GROUP as POLICIES
from longshore_devcluster.apiserver.policies import Policies, policy_errors
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.store import Key

_SYSTEM = User("system:apiserver", (MASTERS,))
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS = 3607
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


class Admission:
    """Called by :class:`Objects` for every write."""

    def __init__(self, objects: Objects, rbac: Rbac) -> None:
        self._objects, self._rbac = objects, rbac
        self._policies = Policies(objects.store)
        self._user: ContextVar[User] = ContextVar("user", default=_SYSTEM)
        self._rng = random.Random(0)

    @contextmanager
    def acting(self, user: User) -> Iterator[None]:
        """Make writes inside this user's; outside they are the server's own."""
        token = self._user.set(user)
        try:
            yield
        finally:
            self._user.reset(token)

    def admit(self, resource: Resource, new: Object, old: Object | None, subresource: str) -> None:
        user = self._user.get()
        if resource.group == POLICIES and resource.kind == "ValidatingAdmissionPolicy":
            if errors := policy_errors(new):
                raise invalid(resource.kind_ref(new["metadata"]["name"]), errors)
        elif resource.group == rbac_module.GROUP:
            self._check_rights(user, resource, new, old)
        elif resource.storage == "pods" and old is None:
            self._admit_pod(new)
        self._policies.check(user, resource, new, old, subresource)

    def _check_rights(self, user: User, resource: Resource, new: Object, old: Object | None) -> None:
        if resource.plural in ("roles", "clusterroles"):
            if old is None or new.get("rules") != old.get("rules"):
                self._rbac.check_role(user, resource.group, resource.plural, new)
        elif old is None or new.get("subjects") != old.get("subjects"):
            self._rbac.check_binding(user, resource.group, resource.plural, new)

    def _admit_pod(self, pod: Object) -> None:
        spec, metadata = pod["spec"], pod["metadata"]
        self._set_priority(pod)
        spec["serviceAccountName"] = spec["serviceAccount"] = spec.get("serviceAccountName") or "default"
        account = self._objects.store.get(Key("serviceaccounts", metadata["namespace"], spec["serviceAccountName"]))
        if account is None:
            ref = ObjectRef("", "pods", metadata["name"])
            why = (
                f"error looking up service account {metadata['namespace']}/{spec['serviceAccountName']}: "
                f'serviceaccount "{spec["serviceAccountName"]}" not found'
            )
            raise forbidden(ref, why)
        if "imagePullSecrets" not in spec and account.obj.get("imagePullSecrets"):
            spec["imagePullSecrets"] = account.obj["imagePullSecrets"]
        mounts = spec.get("automountServiceAccountToken", account.obj.get("automountServiceAccountToken", True))
        if mounts:
            self._mount_token(spec)
        _add_tolerations(spec)

    def _set_priority(self, pod: Object) -> None:
        spec = pod["spec"]
        name = spec.get("priorityClassName", "")
        if not name:
            spec.setdefault("priority", 0)
            spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
            return
        found = self._objects.store.get(Key("priorityclasses.scheduling.k8s.io", "", name))
        if found is None:
            raise forbidden(
                ObjectRef("", "pods", pod["metadata"]["name"]), f"no PriorityClass with name {name} was found"
            )
        spec["priority"] = found.obj["value"]
        spec["preemptionPolicy"] = found.obj.get("preemptionPolicy", "PreemptLowerPriority")

    def _mount_token(self, spec: Object) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        name = "kube-api-access-" + "".join(self._rng.choices(_SUFFIX, k=5))
        mounted = False
        for container in containers:
            mounts = container.get("volumeMounts") or []
            if any(m.get("mountPath") == _TOKEN_PATH for m in mounts):
                continue
            mount = {"name": name, "readOnly": True, "mountPath": _TOKEN_PATH}
            container["volumeMounts"] = [*mounts, mount]
            mounted = True
        if mounted:
            spec["volumes"] = [*(spec.get("volumes") or ()), {"name": name, "projected": _token_sources()}]


def _token_sources() -> Object:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": 420,
    }


def _add_tolerations(spec: Object) -> None:
    """Let pods stay 300 s on a node that is not ready or cannot be reached, unless they say otherwise."""
    tolerations = list(spec.get("tolerations") or ())
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        covered = any(t.get("key", key) == key and t.get("effect", "NoExecute") == "NoExecute" for t in tolerations)
        if not covered:
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    spec["tolerations"] = tolerations
