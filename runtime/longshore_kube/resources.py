"""Kinds of objects and where they are in the API."""

import re
from dataclasses import dataclass
from typing import Any, Final

from longshore_kube.errors import ApiError

Json = dict[str, Any]
"""One Kubernetes object, or a part of one, as the API server sends it."""
_NO_NAME: Final = re.compile(r"\.{1,2}|.*[/%?#].*", re.DOTALL)
"""What no object of Kubernetes is called, and what would be another place in a URL."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and its place in the API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`apiVersion` of the objects of this resource."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or a subresource.

        Raises:
            ApiError: nothing can have such a name. Names can come from strangers, and must not lead anywhere else.
        """
        for part in (namespace or "", name):
            if _NO_NAME.fullmatch(part):
                raise ApiError(404, "NotFound", f"{self.plural} {part!r} not found: nothing can have this name")
        parts = [group_path(self.api_version)]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, *(part for part in (self.plural, name, subresource) if part)])


def group_path(api_version: str) -> str:
    """Return the URL path of an API group and version; it answers with the resources that there are."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


_RBAC = "rbac.authorization.k8s.io"
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
SERVICES = Resource("", "v1", "services", "Service")
ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLES = Resource(_RBAC, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
BY_KIND = {found.kind: found for found in list(globals().values()) if isinstance(found, Resource)}
