"""What tests apply to the cluster."""

from longshore_client.kube import Kube
from longshore_kube.resources import Json

IMAGE = "python:3.11"
"""The embedded kubelet runs the machine's own Python."""


def job(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "longshore.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"builtin": "Tiny"},
            "data": {"builtin": "Counting"},
            "algorithm": {"steps": 3, "promptsPerStep": 2, "responsesPerPrompt": 2, "maxResponseTokens": 64},
            "storage": {"claimName": "shared"},
            **spec,
        },
    }


def claim(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def report(kube: Kube, name: str, status: Json) -> None:
    """Write a status as operator and coordinator would."""
    path = f"{kube.job_path(name)}/status"
    kube.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


def pod(name: str, program: str) -> Json:
    container = {"name": "longshore", "image": IMAGE, "command": ["python", "-c", program]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "containers": [container]}}  # fmt: skip
