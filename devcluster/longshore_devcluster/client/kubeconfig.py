"""Kubeconfigs of the embedded cluster: its administrator's, and those of its pods."""

import base64

import yaml

from longshore_kube.resources import Json


def kubeconfig(url: str, ca: bytes, user: Json, namespace: str = "default") -> str:
    """Return a kubeconfig with one context, ``devcluster``."""
    name, authority = "devcluster", base64.b64encode(ca).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
    }
    return yaml.safe_dump(config)
