"""Which volume a claim gets: an existing one that fits, or a new directory. Pure."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from longshore_devcluster.client.objects import uid_of
from longshore_devcluster.client.selectors import selector_matches
from longshore_kube.quantities import parse_quantity
from longshore_kube.resources import Json

DEFAULT_CLASS = "standard"
PROVISIONER = "devcluster/directory"
PROTECTION = "kubernetes.io/pvc-protection"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


def storage_class() -> Json:
    """Return the default StorageClass: a directory below the cluster's data directory for each claim."""
    return {
        "metadata": {
            "name": DEFAULT_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def matching_volume(claim: Json, volumes: Sequence[Json]) -> Json | None:
    """Return the volume reserved for a claim, else the smallest free one that satisfies it."""
    spec = claim["spec"]
    reserved = [volume for volume in volumes if _claimed_by(volume, claim)]
    if reserved:
        return reserved[0]
    fitting = [volume for volume in volumes if not volume["spec"].get("claimRef") and _fits(spec, volume)]
    return min(fitting, key=lambda volume: (_capacity(volume), volume["metadata"]["name"]), default=None)


def new_volume(claim: Json, root: Path) -> Json:
    """Return a directory volume for a claim, bound to it from the start."""
    meta, spec = claim["metadata"], claim["spec"]
    name = f"pvc-{uid_of(claim)}"
    path = root / f"{meta['namespace']}-{meta['name']}-{uid_of(claim)[:8]}"
    return {
        "metadata": {"name": name, "annotations": {_PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": class_of(claim),
            "volumeMode": "Filesystem",
            "hostPath": {"path": str(path), "type": "DirectoryOrCreate"},
            "claimRef": claim_reference(claim),
        },
    }


def claim_reference(claim: Json) -> Json:
    """Return how a volume names the claim that it belongs to."""
    meta = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": uid_of(claim),
    }


def class_of(claim: Json) -> str:
    """Return the storage class of a claim; one that names none gets the default, one that names "" wants none."""
    name = claim["spec"].get("storageClassName")
    return DEFAULT_CLASS if name is None else str(name)


def is_provisioned(volume: Json) -> bool:
    """Return whether this cluster made the volume's directory."""
    return (volume["metadata"].get("annotations") or {}).get(_PROVISIONED_BY) == PROVISIONER


def users_of(claim: Json, pods: Sequence[Json]) -> list[Json]:
    """Return the pods that have not ended and mount the claim."""
    meta = claim["metadata"]
    return [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == meta["namespace"]
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        and pod["spec"].get("nodeName")
        and any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == meta["name"]
            for volume in pod["spec"].get("volumes") or []
        )
    ]


def _claimed_by(volume: Json, claim: Json) -> bool:
    reference, meta = volume["spec"].get("claimRef") or {}, claim["metadata"]
    same_name = (reference.get("namespace"), reference.get("name")) == (meta["namespace"], meta["name"])
    return same_name and reference.get("uid") in (None, "", uid_of(claim))


def _fits(spec: Json, volume: Json) -> bool:
    offered = volume["spec"]
    if spec.get("volumeName"):
        return bool(spec["volumeName"] == volume["metadata"]["name"])
    same_class = (offered.get("storageClassName") or "") == (
        DEFAULT_CLASS if spec.get("storageClassName") is None else spec["storageClassName"]
    )
    return (
        same_class
        and set(spec.get("accessModes") or []) <= set(offered.get("accessModes") or [])
        and _capacity(volume) >= parse_quantity(spec["resources"]["requests"]["storage"])
        and ("selector" not in spec or selector_matches(spec["selector"], volume["metadata"].get("labels")))
    )


def _capacity(volume: Json) -> Fraction:
    return parse_quantity((volume["spec"].get("capacity") or {}).get("storage", 0))
