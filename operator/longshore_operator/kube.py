"""What the operator asks of the API server: objects by kind, under its own field manager."""

from typing import Any, Final, Self

from longshore.api import names
from longshore_kube.access import Access
from longshore_kube.client import JSON_TYPE, METADATA_TYPE, Client
from longshore_kube.errors import ApiError
from longshore_kube.resources import BY_KIND, Resource
from longshore_operator.pod_group_api import APIS

Object = dict[str, Any]

REQUEST_TIMEOUT_S: Final = 10
RLJOBS: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)
_PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
_KUEUE_PLURALS: Final = {
    "Workload": "workloads",
    "ResourceFlavor": "resourceflavors",
    "WorkloadPriorityClass": "workloadpriorityclasses",
}
_RESOURCES: Final = {
    **BY_KIND,
    **{found.kind: found for found in (RLJOBS, _PRIORITY_CLASSES)},
    # Which version of these is served differs from cluster to cluster.
    **{
        f"{kind}@{version}": Resource("kueue.x-k8s.io", version, plural, kind, namespaced=kind == "Workload")
        for kind, plural in _KUEUE_PLURALS.items()
        for version in ("v1beta1", "v1beta2")
    },
    **{api.resource: Resource(api.group, api.version, "podgroups", "PodGroup") for api in APIS.values()},
}


class KubeClient:
    """Client of one API server; use it as an async context manager. See `Client` for what it raises."""

    def __init__(self, access: Access, field_manager: str = names.OPERATOR_FIELD_MANAGER) -> None:
        self.client = Client(access, field_manager, request_timeout_s=REQUEST_TIMEOUT_S, max_connections=64)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.__aexit__()

    def path(self, kind: str, namespace: str | None) -> str:
        """Return the URL path of a collection."""
        return _RESOURCES[kind].path(namespace)

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Object | None:
        """Return the object, or None if there is none of that name.

        Raises:
            Unreadable: it is too large or nested too deeply; its metadata can be had.
        """
        accept = METADATA_TYPE if metadata_only else JSON_TYPE
        try:
            return await self.client.request("GET", _RESOURCES[kind].path(namespace, name), accept=accept)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def apply(self, manifest: Object, subresource: str = "") -> Object:
        """Apply an object server-side.

        Our fields become as in the manifest, those of others stay. Returns the metadata only.
        """
        resource = _RESOURCES[manifest["kind"]]
        return await self.client.apply(resource, manifest, subresource, accept=METADATA_TYPE)

    async def label(self, kind: str, namespace: str, name: str, uid: str, labels: dict[str, str]) -> Object | None:
        """Set labels of the object with this uid, and return it; None: it is gone."""
        try:
            return await self.merge(kind, namespace, name, {"metadata": {"uid": uid, "labels": labels}})
        except ApiError as error:
            # The name belongs to a newer object by now, whose uid cannot be changed.
            if error.code == 422 and "metadata.uid" in str(error):
                return None
            raise

    async def merge(self, kind: str, namespace: str, name: str, change: Object, subresource: str = "") -> Object | None:
        """Merge patch; None if the object is gone, or is not of the version that the change names."""
        try:
            return await self.client.patch(_RESOURCES[kind], name, namespace, change, subresource=subresource)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise
            return None

    async def set_managers(self, kind: str, metadata: Object, entries: list[Object]) -> None:
        """Say who manages which fields of the object whose metadata these are; a conflict if it has changed since."""
        change = {"metadata": {"managedFields": entries, "resourceVersion": metadata["resourceVersion"]}}
        await self.client.patch(_RESOURCES[kind], metadata["name"], metadata["namespace"], change)

    async def served_versions(self, group: str) -> tuple[str, ...]:
        """Return the versions of an API group, the preferred first; empty: it is not served."""
        try:
            found = await self.client.request("GET", f"/apis/{group}")
        except ApiError as error:
            if not error.not_found:
                raise
            return ()
        return tuple(one["version"] for one in found.get("versions") or ())

    async def create(self, manifest: Object, kind: str = "") -> Object | None:
        """Return the created object, or None if one of that name exists already. `kind`: in place of the manifest's."""
        resource = _RESOURCES[kind or manifest["kind"]]
        try:
            return await self.client.create(resource, manifest, manifest["metadata"]["namespace"])
        except ApiError as error:
            if error.conflict and error.reason == "AlreadyExists":
                return None
            raise

    async def is_missing(self, manifest: Object) -> bool:
        """Return whether the object could be created, without the right to read it and without creating it."""
        resource, namespace = _RESOURCES[manifest["kind"]], manifest["metadata"]["namespace"]
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        try:
            await self.client.request("POST", resource.path(namespace), query={"dryRun": "All"}, body=body)
        except ApiError as error:
            # A namespace whose quota is used up refuses it before it looks at the name; then nothing is missing.
            if error.conflict or error.code == 403:
                return False
            raise
        return True

    async def replace(self, manifest: Object) -> Object:
        """Write a whole object, which carries the resource version that it was read with."""
        return await self.client.replace(_RESOURCES[manifest["kind"]], manifest)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid, dependants in the background; one that is gone is no error."""
        try:
            await self.client.delete(_RESOURCES[kind], name, namespace, uid=uid)
        except ApiError as error:
            # A conflict: the name belongs to a newer object by now.
            if not (error.not_found or error.conflict):
                raise
