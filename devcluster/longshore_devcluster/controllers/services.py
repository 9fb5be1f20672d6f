"""Keeps the Endpoints and EndpointSlices of Services."""

from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import is_deleting
from longshore_devcluster.client.tasks import each
from longshore_devcluster.controllers.endpoints import endpoints_of, slice_of
from longshore_kube.client import Client
from longshore_kube.errors import ApiError
from longshore_kube.resources import ENDPOINT_SLICES, ENDPOINTS, Json, Resource


class EndpointsController:
    """Writes which addresses stand behind each Service that has a selector."""

    def __init__(
        self, client: Client, services: Informer, pods: Informer, endpoints: Informer, slices: Informer
    ) -> None:
        self._client = client
        self._services = services
        self._pods = pods
        self._endpoints = endpoints
        self._slices = slices

    async def reconcile(self) -> None:
        """One pass over all Services. Errors: ApiError."""
        selecting = [entry for entry in self._services if entry["spec"].get("selector") and not is_deleting(entry)]
        await each(selecting, self._reconcile_service)
        await each(self._endpoints, self._drop_orphan)

    async def _reconcile_service(self, service: Json) -> None:
        pods = list(self._pods)
        await self._write(ENDPOINTS, self._endpoints, endpoints_of(service, pods), ("subsets",))
        await self._write(ENDPOINT_SLICES, self._slices, slice_of(service, pods), ("endpoints", "ports"))

    async def _write(self, resource: Resource, known: Informer, wanted: Json, fields: tuple[str, ...]) -> None:
        meta = wanted["metadata"]
        present = known.get(meta["namespace"], meta["name"])
        if present is None:
            known.observe(await self._client.create(resource, wanted, meta["namespace"]))
        elif any((present.get(field) or []) != wanted[field] for field in fields):
            change = {field: wanted[field] for field in fields}
            known.observe(await self._client.patch(resource, meta["name"], meta["namespace"], change))

    async def _drop_orphan(self, endpoints: Json) -> None:
        # Endpoints carry no owner reference, so nothing else removes them with their Service.
        meta = endpoints["metadata"]
        managed = (meta.get("labels") or {}).get("endpoints.kubernetes.io/managed-by") == "endpoint-controller"
        if managed and self._services.get(meta["namespace"], meta["name"]) is None:
            try:
                await self._client.delete(ENDPOINTS, meta["name"], meta["namespace"])
            except ApiError as error:
                if not error.not_found:
                    raise
