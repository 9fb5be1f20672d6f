"""Why the storage of a job is not there yet: the claim, the storage classes and the claim's events, in one sentence."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from longshore.api import names
from longshore_client.kube import Kube
from longshore_kube.errors import ApiError
from longshore_kube.resources import CLAIMS, EVENTS, STORAGE_CLASSES, Json
from longshore_kube.times import rfc3339

LOOK_S: Final = 5.0
"""A claim that is bound sooner is not worth a word; the reason is looked up again this often."""
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True)
class ClaimTrouble:
    """A claim that is not bound, and why as far as it is known."""

    claim: str
    uid: str
    message: str

    def as_event(self) -> Json:
        """Return the form in which a watch shows it."""
        return {
            "metadata": {"uid": f"claim-{self.uid}"},
            "lastTimestamp": rfc3339(time.time()),
            "type": "Warning",
            "reason": "StoragePending",
            "message": self.message,
        }


def claim_name(job: Json) -> str:
    """Return the claim that the pods of a job mount."""
    storage = (job.get("spec") or {}).get("storage") or {}
    return str(storage.get("claimName") or names.storage_claim(job["metadata"]["name"]))


def why_unbound(claim: Json, classes: Iterable[Json] | None, events: Iterable[Json]) -> str:
    """Return one sentence: what the claim waits for and who can change it; `classes`: None if they may not be read."""
    name = claim["metadata"]["name"]
    wanted = claim["spec"].get("storageClassName")
    begin = f"The claim {name} is not bound: "
    known = None if classes is None else {item["metadata"]["name"]: item for item in classes}
    if known is not None and wanted and wanted not in known:
        there_are = f"there are {', '.join(sorted(known))}" if known else "the cluster has none"
        return f"{begin}there is no StorageClass {wanted!r} ({there_are}); correct storageClassName of the claim."
    if failure := _newest_failure(events):
        return f"{begin}its volume cannot be provisioned: {failure}"
    if known is None:
        return f"{begin}`kubectl describe pvc {name}` shows what it waits for."
    if not wanted:
        if claim["spec"].get("volumeName") or wanted == "" or any(map(_is_default, known.values())):
            return f"{begin}no volume fits it; `kubectl describe pvc {name}` shows what it waits for."
        choice = f"one of {', '.join(sorted(known))}" if known else "a StorageClass, of which the cluster has none"
        return (
            f"{begin}it names no StorageClass and the cluster has no default one; "
            f"set storageClassName of the claim to {choice}."
        )
    modes = ", ".join(claim["spec"].get("accessModes") or ())
    if known[wanted].get("volumeBindingMode") == "WaitForFirstConsumer":
        return (
            f"{begin}StorageClass {wanted!r} waits until a pod that mounts it has a node; "
            f"the events of the job's pods say why none has."
        )
    return f"{begin}the provisioner {known[wanted].get('provisioner')} has not made a volume with {modes} yet."


def troubles(kube: Kube, claim: str) -> Iterator[ClaimTrouble]:
    """Report what keeps the claim unbound, at every change, until it is bound or the client is closed."""
    path = CLAIMS.path(kube.namespace)
    reported = ""
    while not kube.is_closed:
        changes = kube.watch(path, f"metadata.name={claim}", timeout_s=LOOK_S)
        newest = None
        for kind, item in changes:
            newest = None if kind == "DELETED" else item
            if newest is not None and _is_bound(newest):
                return
        if newest is not None:
            message = why_unbound(newest, _storage_classes(kube), _events(kube, newest))
            if message != reported:
                reported = message
                yield ClaimTrouble(claim, newest["metadata"].get("uid", ""), message)


def _is_bound(claim: Json) -> bool:
    return bool((claim.get("status") or {}).get("phase") == "Bound")


def _is_default(storage_class: Json) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get(_DEFAULT_CLASS) == "true")


def _newest_failure(events: Iterable[Json]) -> str:
    failed = [event for event in events if event.get("reason") == "ProvisioningFailed"]
    newest = max(failed, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
    return "" if newest is None else " ".join((newest.get("message") or "no reason given").split())


def _storage_classes(kube: Kube) -> list[Json] | None:
    """Return the storage classes, which belong to the cluster, or None for users who may not list them."""
    try:
        return kube.items(STORAGE_CLASSES.path())
    except ApiError as error:
        if error.code in (403, 404):
            return None
        raise


def _events(kube: Kube, claim: Json) -> list[Json]:
    try:
        return kube.items(EVENTS.path(kube.namespace), fields=f"involvedObject.uid={claim['metadata']['uid']}")
    except ApiError as error:
        if error.code == 403:
            return []
        raise
