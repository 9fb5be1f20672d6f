"""Small Kubernetes objects for specifications."""

from typing import Any

Json = dict[str, Any]


def pod(name: str = "p", **spec: Any) -> Json:
    """A pod with one container; `requests`, `limits`, `labels`, `annotations` and `status` go where they belong."""
    resources = {kind: spec.pop(kind) for kind in ("requests", "limits") if kind in spec}
    meta = {
        kind: spec.pop(kind)
        for kind in ("labels", "annotations", "ownerReferences", "deletionTimestamp")
        if kind in spec
    }
    status = spec.pop("status", {})
    container = {"name": "main", "image": "none", "command": ["true"], "resources": resources}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta},
        "spec": {"containers": [container], **spec},
        "status": status,
    }


def node(name: str = "n", *, labels: Json | None = None, **allocatable: str) -> Json:
    """A Ready node; `gpu` stands for example.com/gpu."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10", **allocatable}
    if "gpu" in amounts:
        amounts["example.com/gpu"] = amounts.pop("gpu")
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }
