"""Carry out the actions of a plan after its status is written: children, deletions, new pods, labels, events."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from longshore.api import names
from longshore.api.status import RLJobStatus
from longshore_kube.errors import ApiError, KubeError
from longshore_kube.times import rfc3339, rfc3339_micro
from longshore_operator.identity import ANNOTATION_FINGERPRINT, Key, controller
from longshore_operator.kube import KubeClient
from longshore_operator.plan import (
    Action,
    Apply,
    CreateObject,
    CreateOnce,
    CreatePod,
    DeleteJob,
    DeleteObject,
    DeletePod,
    Event,
    LabelPod,
    ObjectAction,
)
from longshore_operator.pod_view import is_of_job

_PARALLEL_REQUESTS = 8
"""Concurrent requests of one pass; all passes share the API server."""
_MAX_ROLE_TRIES = 6
_MAX_MESSAGE_BYTES = 1024
"""Largest size of the message of an event."""

log = structlog.get_logger(__name__)


class ApplyFailed(Exception):
    """Part of a plan could not be applied; the message is the API server's."""


def status_fields(status: RLJobStatus) -> dict[str, Any]:
    """Return the part of a status that the operator owns, as it is sent."""
    return status.model_dump(mode="json", by_alias=True, exclude={"runtime"}, exclude_none=True)


async def write_status(
    kube: KubeClient, key: Key, uid: str, fields: dict[str, Any], version: str = ""
) -> dict[str, Any]:
    """Write the operator's part of the status.

    With a resource version, it is a conflict if the job has changed since, or is another one of the name. The uid alone
    protects a new job only where the API server compares it, which Kubernetes does not for the status of an RLJob.
    """
    metadata = {"namespace": key[0], "name": key[1], "uid": uid} | ({"resourceVersion": version} if version else {})
    return await kube.apply(
        {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "status": fields},
        subresource="status",
    )


async def replace_status(
    kube: KubeClient, key: Key, uid: str, version: str, before: RLJobStatus, fields: dict[str, Any]
) -> dict[str, Any] | None:
    """Write the whole status of a job, also what others have written; None: the job has changed since this version.

    Others replace it, too: server-side apply would only give up the fields that the operator applied earlier.
    """
    known = before.model_dump(mode="json", by_alias=True, exclude_none=True)
    change = {"metadata": {"uid": uid, "resourceVersion": version}, "status": _difference(known, fields)}
    return await kube.merge(names.KIND, *key, change, subresource="status")


def _difference(before: Any, after: Any) -> Any:
    """Return the merge patch from one value to another."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return after
    changed = {name: _difference(before.get(name), value) for name, value in after.items()}
    return changed | dict.fromkeys(before.keys() - after.keys())


class Hindrance(Exception):
    """Something in the cluster stands in the way of an action; the message names it and the fix."""


class NameTaken(Hindrance):
    """Another object has the name of one of the job's children."""

    def __init__(self, kind: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        name = found["name"]
        if _is_of_namesake(found, wanted):
            super().__init__(f"{kind} {name} of an earlier job is still being deleted: this job starts when it is gone")
        elif "deletionTimestamp" in found:
            problem = f"{kind} {name}, which does not belong to this job, is still being deleted"
            super().__init__(f"{problem}: this job starts when it is gone")
        else:
            super().__init__(f"{kind} {name} exists and does not belong to this job: delete it or rename the job")


class LabelsOverruled(Hindrance):
    """The API server accepted labels of a pod and stored others, as policies that change objects make it."""

    def __init__(self, pod: LabelPod, found: dict[str, str]) -> None:
        name = next(name for name, value in pod.labels.items() if found.get(name) != value)
        has = f"sets it to {found[name]!r}" if name in found else "removes it"
        super().__init__(
            f"label {name} of pod {pod.name} must be {pod.labels[name]!r}, and a policy of the cluster {has}: exempt "
            "the pods of RLJobs from that policy"
        )


class Executor:
    """Apply the actions of one job.

    `on_applied((kind, name), fingerprint)`, `on_created(pod)` and `on_deleting(name, uid)` learn what the API server
    accepted, and `on_found(pod)` which pods of the job exist already.
    """

    def __init__(
        self,
        kube: KubeClient,
        on_applied: Callable[[tuple[str, str], str], None],
        on_created: Callable[[dict[str, Any]], None],
        on_found: Callable[[dict[str, Any]], None],
        on_deleting: Callable[[str, str], None],
    ) -> None:
        self._kube = kube
        self._on_applied = on_applied
        self._on_created = on_created
        self._on_found = on_found
        self._on_deleting = on_deleting

    async def run(self, key: Key, uid: str, actions: Iterable[Action], now: datetime) -> None:
        """Execute all actions, also after one has failed; but no pod is created without a child that it may need.

        Secrets that earlier attempts had are there although the API server refuses to create them again: it looks at
        quotas first, and only then at the name.

        Raises:
            ApplyFailed: with the failure that matters most, after everything was tried.
        """
        actions = tuple(actions)
        children = [action for action in actions if isinstance(action, Apply | CreateOnce)]
        bindings = [child for child in children if child.key[0] == "RoleBinding"]
        deletions = [action for action in actions if isinstance(action, DeletePod)]
        creations = [action for action in actions if isinstance(action, CreatePod)]
        again = [child for child in children if isinstance(child, CreateOnce) and child.is_again]
        needed = await _all(self._child(child) for child in children if child not in (*bindings, *again))
        # An API server grants a role only if it knows it.
        needed += await _all(self._child(binding) for binding in bindings)
        others = await _all(self._child(secret) for secret in again)
        others += await _all(self._delete_pod(key, pod) for pod in deletions)
        others += await _all(self._object(key, one) for one in actions if isinstance(one, ObjectAction))
        if not needed:
            needed = await _all(self._create_pod(pod) for pod in creations)
        others += await _all(self._label(key, pod) for pod in actions if isinstance(pod, LabelPod))
        for number, event in enumerate(action for action in actions if isinstance(action, Event)):
            # Events of one pass keep their order where times are compared.
            await self._post(key, uid, event, now + timedelta(microseconds=number))
        for action in actions:
            if isinstance(action, DeleteJob):
                await self._kube.delete(names.KIND, *key, action.uid)
        if failures := needed + others:
            raise ApplyFailed(failures[0])

    async def _child(self, child: Apply | CreateOnce) -> None:
        if isinstance(child, Apply):
            await (_until_role_is_known(self._apply, child) if child.key[0] == "RoleBinding" else self._apply(child))
            self._on_applied(child.key, "" if child.is_kept else child.fingerprint)
        else:
            await self._kube.create(child.manifest)
            self._on_applied(child.key, "")

    async def _apply(self, child: Apply) -> None:
        """Bring a child to its manifest; one of another owner, perhaps an earlier job of the name, is left alone."""
        if child.is_new and await self._kube.create(child.manifest) is not None:
            return
        kind, name = child.key
        metadata = child.manifest["metadata"]
        found = await self._kube.get(kind, metadata["namespace"], name, metadata_only=True)
        if found is not None:
            if controller(found["metadata"]).get("uid") != controller(metadata).get("uid"):
                raise NameTaken(kind, found["metadata"], metadata)
            annotations = found["metadata"].get("annotations", {})
            if child.is_kept or annotations.get(ANNOTATION_FINGERPRINT) == child.fingerprint:
                if not metadata["labels"].items() <= found["metadata"].get("labels", {}).items():
                    uid = found["metadata"]["uid"]
                    await self._kube.label(kind, metadata["namespace"], name, uid, metadata["labels"])
                return
            await self._own(child, found["metadata"])
        await self._kube.apply(child.manifest)

    async def _own(self, child: Apply, metadata: dict[str, Any]) -> None:
        """Own a child that was created as if it had been applied, so that an apply removes what is not wanted any more.

        Otherwise its fields stay owned by its creation, whatever the manifest says.
        """
        entries = metadata.get("managedFields") or []
        if any(_is_our_creation(entry) for entry in entries):
            applied = [entry | {"operation": "Apply"} if _is_our_creation(entry) else entry for entry in entries]
            await self._kube.set_managers(child.key[0], metadata, applied)

    async def _object(self, key: Key, action: ObjectAction) -> None:
        if isinstance(action, CreateObject):
            await self._kube.create(action.manifest, action.kind)
        elif isinstance(action, DeleteObject):
            await self._kube.delete(action.kind, key[0], action.name, action.uid)
        else:
            await self._kube.merge(action.kind, key[0], action.name, action.change, action.subresource)

    async def _delete_pod(self, key: Key, pod: DeletePod) -> None:
        await self._kube.delete("Pod", key[0], pod.name, pod.uid)
        self._on_deleting(pod.name, pod.uid)

    async def _create_pod(self, pod: CreatePod) -> None:
        """Create a pod. An existing one of this name counts from now on if it is the job's, or else is an error.

        The watch does not show a pod that has lost its labels.
        """
        wanted = pod.manifest["metadata"]
        while (created := await self._kube.create(pod.manifest)) is None:
            found = await self._kube.get("Pod", wanted["namespace"], pod.name)
            if found is None:
                continue  # It has gone meanwhile.
            if not is_of_job(found["metadata"], controller(wanted)["name"]):
                raise NameTaken("pod", found["metadata"], wanted)
            self._on_found(found)
            return
        self._on_created(created)

    async def _label(self, key: Key, pod: LabelPod) -> None:
        found = await self._kube.label("Pod", key[0], pod.name, pod.uid, pod.labels)
        if found is None:
            return
        self._on_found(found)
        labels = found["metadata"].get("labels") or {}
        if not pod.labels.items() <= labels.items():
            raise LabelsOverruled(pod, labels)

    async def _post(self, key: Key, uid: str, event: Event, now: datetime) -> None:
        """Post an event. Events are for people, so a failure is only logged."""
        try:
            await self._kube.create(event_manifest(key, uid, event, now))
        except KubeError as error:
            log.warning("event not posted", job=key, reason=event.reason, error=str(error))


async def _until_role_is_known(apply: Callable[[Apply], Awaitable[None]], binding: Apply) -> None:
    """Apply a RoleBinding; an API server answers 404 until its own cache has the Role that was just created."""
    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, ApiError) and error.not_found),
        stop=stop_after_attempt(_MAX_ROLE_TRIES),
        wait=wait_exponential_jitter(multiplier=0.05, max=1, jitter=0.05),
        reraise=True,
    )
    async for attempt in retrying:
        with attempt:
            await apply(binding)


def require_repairs(wanted: Iterable[Action], done: Iterable[Action], error: str | None) -> None:
    """Raise ApplyFailed if labels of a pod are not restored yet, because that was refused or somebody changes them.

    Args:
        error: why the previous plan could not be applied; None: it was.
    """
    done_uids = {pod.uid for pod in done if isinstance(pod, LabelPod)}
    for pod in wanted:
        if isinstance(pod, LabelPod) and pod.is_repair and pod.uid not in done_uids:
            name = next(iter(pod.labels))
            raise ApplyFailed(
                error
                or f"label {name} of pod {pod.name} was changed again after the operator had restored it: exempt the "
                f"pods of RLJobs from what changes it; it must be {pod.labels[name]!r}"
            )


def _is_our_creation(entry: dict[str, Any]) -> bool:
    """Return whether an entry of the managed fields names what the operator set when it created the object."""
    return entry.get("manager") == names.OPERATOR_FIELD_MANAGER and entry.get("operation") == "Update"


def _is_of_namesake(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether an earlier job of this name owns an object, which is therefore deleted soon."""
    return is_of_job(found, str(controller(wanted).get("name")))


def event_manifest(key: Key, uid: str, event: Event, now: datetime) -> dict[str, Any]:
    """Return the event as an object, with a name derived from its key, so that it exists once."""
    digest = hashlib.sha256(f"{uid}/{event.reason}/{event.key}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{key[1]}.{digest}", "namespace": key[0]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": key[0],
            "name": key[1],
            "uid": uid,
        },
        "type": event.type,
        "reason": event.reason,
        # The API server counts bytes.
        "message": event.message.encode()[:_MAX_MESSAGE_BYTES].decode(errors="ignore"),
        "source": {"component": names.OPERATOR_FIELD_MANAGER},
        "reportingComponent": names.OPERATOR_FIELD_MANAGER,
        "reportingInstance": names.OPERATOR_FIELD_MANAGER,
        "action": "Reconcile",
        # The older fields have whole seconds, in which many events can happen.
        "eventTime": rfc3339_micro(now),
        "firstTimestamp": rfc3339(now),
        "lastTimestamp": rfc3339(now),
        "count": 1,
    }


async def _all(work: Iterable[Awaitable[None]]) -> list[str]:
    """Run concurrently, a few at a time; return the messages of those that failed."""
    slots = asyncio.Semaphore(_PARALLEL_REQUESTS)

    async def one(item: Awaitable[None]) -> str | None:
        async with slots:
            try:
                await item
            except (KubeError, Hindrance) as error:
                return str(error) or repr(error)
        return None

    return [message for message in await asyncio.gather(*(one(item) for item in work)) if message]
