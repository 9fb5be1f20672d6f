"""Credentials for the API server, as the pod has them."""

import os
from collections.abc import Mapping

from kubernetes import config


def load_credentials(environment: Mapping[str, str] = os.environ) -> None:
    """Configure the Kubernetes client: from the pod's service account, or from KUBECONFIG where that is set.

    The library's own `load_config` prints a warning that this might not work before it reads a service account.

    Raises:
        kubernetes.config.ConfigException: there is neither.
    """
    if environment.get("KUBECONFIG"):
        config.load_kube_config(config_file=environment["KUBECONFIG"])
    else:
        config.load_incluster_config()
