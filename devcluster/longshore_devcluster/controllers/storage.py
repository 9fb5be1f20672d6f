"""Binds claims to volumes, makes directories for those that want the default class, and frees what is released."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from longshore_devcluster.client.events import EventRecorder
from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import is_deleting, uid_of
from longshore_devcluster.client.tasks import each
from longshore_devcluster.controllers.claims import (
    DEFAULT_CLASS,
    PROTECTION,
    claim_reference,
    class_of,
    is_provisioned,
    matching_volume,
    new_volume,
    storage_class,
    users_of,
)
from longshore_devcluster.controllers.workloads import delete_quietly
from longshore_kube.client import Client
from longshore_kube.errors import ApiError
from longshore_kube.resources import CLAIMS, STORAGE_CLASSES, VOLUMES, Json


class StorageController:
    """Persistent volumes and their claims. `root` holds the directories that it makes."""

    def __init__(
        self,
        client: Client,
        claims: Informer,
        volumes: Informer,
        pods: Informer,
        root: Path,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._claims = claims
        self._volumes = volumes
        self._pods = pods
        self._root = root
        self._events = EventRecorder(client, "persistentvolume-controller", now)
        self._has_class = False

    async def reconcile(self) -> None:
        """Do one pass over all claims and volumes. Errors: ApiError."""
        if not self._has_class:
            await self._ensure_class()
        await each(self._claims, self._reconcile_claim)
        await each(self._volumes, self._settle)

    async def _reconcile_claim(self, claim: Json) -> None:
        if is_deleting(claim):
            await self._let_go(claim)
        elif not await self._protected(claim) and (claim.get("status") or {}).get("phase") != "Bound":
            await self._bind(claim)

    async def _ensure_class(self) -> None:
        try:
            await self._client.create(STORAGE_CLASSES, storage_class())
        except ApiError as error:
            if not error.conflict:
                raise
        self._has_class = True

    async def _protected(self, claim: Json) -> bool:
        """Return whether the claim had first to get the finalizer that keeps it while pods use it."""
        finalizers = claim["metadata"].get("finalizers") or []
        if PROTECTION in finalizers:
            return False
        await self._patch_claim(claim, {"metadata": {"finalizers": [*finalizers, PROTECTION]}})
        return True

    async def _let_go(self, claim: Json) -> None:
        finalizers = claim["metadata"].get("finalizers") or []
        if PROTECTION in finalizers and not users_of(claim, list(self._pods)):
            rest = [entry for entry in finalizers if entry != PROTECTION]
            await self._patch_claim(claim, {"metadata": {"finalizers": rest}})

    async def _bind(self, claim: Json) -> None:
        volume = matching_volume(claim, list(self._volumes))
        if volume is None:
            if class_of(claim) != DEFAULT_CLASS or claim["spec"].get("volumeName"):
                await self._report_unbound(claim)
                return
            volume = await self._provision(claim)
        reference = volume["spec"].get("claimRef") or {}
        if reference.get("uid") != uid_of(claim):
            change = {"spec": {"claimRef": claim_reference(claim)}}
            volume = await self._client.patch(VOLUMES, volume["metadata"]["name"], "", change)
            self._volumes.observe(volume)
        meta, name = claim["metadata"], volume["metadata"]["name"]
        spec = {"volumeName": name, "storageClassName": volume["spec"].get("storageClassName") or ""}
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        await self._patch_claim(claim, {"metadata": {"annotations": done}, "spec": spec})
        status = {
            "phase": "Bound",
            "capacity": volume["spec"]["capacity"],
            "accessModes": volume["spec"]["accessModes"],
        }
        answer = await self._client.patch(
            CLAIMS, meta["name"], meta["namespace"], {"status": status}, subresource="status"
        )
        self._claims.observe(answer)

    async def _provision(self, claim: Json) -> Json:
        body = new_volume(claim, self._root)
        await asyncio.to_thread(Path(body["spec"]["hostPath"]["path"]).mkdir, parents=True, exist_ok=True)
        try:
            volume = await self._client.create(VOLUMES, body)
        except ApiError as error:
            if not error.conflict:
                raise
            volume = await self._client.get(VOLUMES, body["metadata"]["name"])
        self._volumes.observe(volume)
        message = f"Successfully provisioned volume {body['metadata']['name']}"
        await self._events.normal(claim, "ProvisioningSucceeded", message)
        return volume

    async def _report_unbound(self, claim: Json) -> None:
        name = class_of(claim)
        message = (
            "no persistent volumes available for this claim and no storage class is set"
            if not name
            else f'storageclass.storage.k8s.io "{name}" has no provisioner here: use "{DEFAULT_CLASS}", '
            "or create a PersistentVolume of that class"
        )
        if (claim.get("status") or {}).get("phase") != "Pending":
            meta = claim["metadata"]
            body = {"status": {"phase": "Pending"}}
            await self._client.patch(CLAIMS, meta["name"], meta["namespace"], body, subresource="status")
        await self._events.warning(claim, "FailedBinding", message)

    async def _settle(self, volume: Json) -> None:
        phase = (volume.get("status") or {}).get("phase")
        reference = volume["spec"].get("claimRef") or {}
        if is_deleting(volume):
            return
        if not reference.get("uid"):
            await self._set_phase(volume, phase, "Available")
            return
        claim = self._claims.get(reference["namespace"], reference["name"])
        if claim is not None and uid_of(claim) == reference["uid"]:
            await self._set_phase(volume, phase, "Bound")
        elif phase != "Released":
            await self._set_phase(volume, phase, "Released")
        elif volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
            await self._reclaim(volume)

    async def _reclaim(self, volume: Json) -> None:
        # Only directories that we made are ours to remove.
        if is_provisioned(volume):
            await asyncio.to_thread(shutil.rmtree, volume["spec"]["hostPath"]["path"], ignore_errors=True)
        await delete_quietly(self._client, VOLUMES, volume)

    async def _set_phase(self, volume: Json, present: str | None, phase: str) -> None:
        if present != phase:
            name, body = volume["metadata"]["name"], {"status": {"phase": phase}}
            self._volumes.observe(await self._client.patch(VOLUMES, name, "", body, subresource="status"))

    async def _patch_claim(self, claim: Json, change: Json) -> None:
        meta = claim["metadata"]
        body = {**change, "metadata": {**change.get("metadata", {}), "uid": uid_of(claim)}}
        self._claims.observe(await self._client.patch(CLAIMS, meta["name"], meta["namespace"], body))
