"""Removes pods whose node has gone, as nobody else can say that they have ended."""

from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import key_of, uid_of
from longshore_devcluster.client.tasks import each
from longshore_kube.client import Client
from longshore_kube.errors import ApiError
from longshore_kube.resources import PODS, Json


class OrphanController:
    """Deletes pods that are bound to a node which does not exist."""

    def __init__(self, client: Client, pods: Informer, nodes: Informer) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes

    async def reconcile(self) -> None:
        """Do one pass over all pods. Errors: ApiError."""
        nodes = {node["metadata"]["name"] for node in self._nodes}
        await each([pod for pod in self._pods if pod["spec"].get("nodeName", "") not in {"", *nodes}], self._remove)

    async def _remove(self, pod: Json) -> None:
        namespace, name = key_of(pod)
        try:
            await self._client.delete(PODS, name, namespace, uid=uid_of(pod), grace_s=0)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise
