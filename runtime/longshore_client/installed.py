"""What of Longshore is installed in a cluster."""

from typing import Final

from longshore_client.kube import Kube
from longshore_kube.errors import ApiError
from longshore_kube.resources import DEPLOYMENTS, Json

RELEASE: Final = "longshore"
"""Name of the Helm release."""
NAMESPACE: Final = "longshore-system"


def operator_deployments(kube: Kube, namespace: str) -> list[Json]:
    """Deployments of the release."""
    return kube.items(DEPLOYMENTS.path(namespace), labels=f"app.kubernetes.io/instance={RELEASE}")


def runtime_image(kube: Kube) -> str | None:
    """Return the image that the installed operator gives to jobs; None where that cannot be seen."""
    try:
        deployments = operator_deployments(kube, NAMESPACE)
    except ApiError as error:
        if error.code in (403, 404):
            return None
        raise
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            for word in container.get("command", []) + container.get("args", []):
                if word.startswith("--runtime-image="):
                    return str(word.partition("=")[2])
    return None
