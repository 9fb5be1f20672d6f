"""What of Longshore is installed in a cluster."""

from collections import defaultdict
from typing import Final

from longshore_client.kube import Kube
from longshore_kube.errors import ApiError
from longshore_kube.resources import DEPLOYMENTS, Json

RELEASE: Final = "longshore"
"""Name of the Helm release."""
NAMESPACE: Final = "longshore-system"


def operator_deployments(kube: Kube, namespace: str) -> list[Json]:
    """Return the Deployments of the release."""
    return kube.items(DEPLOYMENTS.path(namespace), labels=f"app.kubernetes.io/instance={RELEASE}")


def operator_options(kube: Kube) -> dict[str, list[str]]:
    """Return the values of the installed operator's options, by name; none where it cannot be seen."""
    try:
        deployments = operator_deployments(kube, NAMESPACE)
    except ApiError as error:
        if error.code in (403, 404):
            return {}
        raise
    options: defaultdict[str, list[str]] = defaultdict(list)
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            for word in container.get("command", []) + container.get("args", []):
                name, _, value = word.partition("=")
                options[name].append(value)
    return dict(options)


def assigns_users(kube: Kube) -> bool:
    """Return whether the cluster is OpenShift, which gives the pods of each namespace a user and a group."""
    try:
        groups = kube.request("GET", "/apis").get("groups") or ()
        return any(group["name"] == "security.openshift.io" for group in groups)
    except ApiError as error:
        if error.code == 403:
            return False
        raise
