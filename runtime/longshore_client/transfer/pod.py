"""The helper pod: mounts the claim, waits, and is deleted after the copy. Built by pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from longshore.api import contract, names
from longshore_kube.resources import Json

CONTAINER: Final = "copy"
LABEL: Final = "longshore.dev/transfer"
DEADLINE_S: Final = 6 * 3600
"""Seconds after which a helper pod ends, should it not be deleted."""
_SOURCE_ENV: Final = "LONGSHORE_TRANSFER"
_WAIT: Final = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
IDS: Final = ("runAsUser", "runAsGroup", "fsGroup")


@dataclass(frozen=True)
class HelperOptions:
    """How a helper pod is started."""

    image: str
    ids: Mapping[str, int]
    """User and group IDs by the fields in `IDS`; empty: the cluster assigns them."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with which its image is pulled."""


def helper_pod(claim: str, options: HelperOptions, *, read_only: bool, job: Json | None) -> Json:
    """Return a restricted pod with the claim; it goes with the job, when there is one."""
    metadata: Json = {"generateName": f"{claim[:40]}-copy-", "labels": {LABEL: "true"}}
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            **options.ids,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(options.image, read_only)],
        "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}],
    }
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    if job is not None:
        metadata["ownerReferences"] = [owner_reference(job)]
        spec["affinity"] = _same_node_affinity(job["metadata"]["name"])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def archive_command(action: str, path: str, *options: str) -> list[str]:
    """Return what to run in the pod; the program itself is in its environment, since commands must stay short."""
    program = f"import os; exec(os.environ[{_SOURCE_ENV!r}])"
    return ["python", "-c", program, action, contract.STORAGE_MOUNT, path, *options]


def trouble(pod: Json) -> str:
    """Return why the pod does not run yet, or never will; empty while nothing is wrong."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return f"it ended: {status.get('reason') or status.get('message') or 'no reason given'}"
    for container in status.get("containerStatuses") or []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"{waiting.get('reason')}: {waiting['message']}"
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    return ""


def _container(image: str, read_only: bool) -> Json:
    return {
        "name": CONTAINER,
        "image": image,
        "command": ["python", "-c", _WAIT],
        "env": [{"name": _SOURCE_ENV, "value": _source()}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "storage", "mountPath": contract.STORAGE_MOUNT, "readOnly": read_only}],
    }


def _source() -> str:
    source = resources.files(__package__).joinpath("archive.py").read_text()
    assert "$(" not in source, "Kubernetes would expand a variable in the program"
    return source


def owner_reference(job: Json) -> Json:
    """Return what an object has that goes with a job."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }


def _same_node_affinity(job: str) -> Json:
    """Return an affinity to nodes that have the claim already: a ReadWriteOnce claim cannot be on two."""
    term = {"labelSelector": {"matchLabels": {names.LABEL_JOB: job}}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    }
