"""Which cluster and namespace a command is meant for."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore_cli import state
from longshore_cli.errors import CliError

if TYPE_CHECKING:
    from longshore_cli.client import Kube

_DEFAULT_KUBECONFIG = "~/.kube/config"


@dataclass(frozen=True)
class Target:
    """What the common options say; unset: what the kubeconfig says."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def connect(self) -> "Kube":
        """A client for the cluster.

        Raises:
            CliError: the kubeconfig does not exist.
            ConfigException: it is of no use, or has no such context.
        """
        # Imported here for the commands that need no cluster, and for --help.
        from kubernetes import client, config

        from longshore_cli.client import Kube

        settings = client.Configuration()
        settings.retries = 1
        path = kubeconfig_path(self)
        if path is None and _is_in_pod():
            config.load_incluster_config(client_configuration=settings)
            return Kube(client.ApiClient(settings), self.namespace or "default")
        path = path or str(Path(_DEFAULT_KUBECONFIG).expanduser())
        _require_file(path)
        config.load_kube_config(path, context=self.context, client_configuration=settings)
        return Kube(client.ApiClient(settings), self.namespace or _namespace_of(path, self.context))


def kubeconfig_path(target: Target, environment: Mapping[str, str] = os.environ,
                    program: str = sys.argv[0]) -> str | None:  # fmt: skip
    """--kubeconfig, $KUBECONFIG, the embedded cluster of this directory; None: the default file, or the pod's own.

    Called as a kubectl plugin the embedded cluster is left out, so that kubectl and its plugin agree.
    """
    if target.kubeconfig is not None:
        return str(target.kubeconfig.expanduser())
    if environment.get("KUBECONFIG"):
        return environment["KUBECONFIG"]
    embedded = state.embedded_kubeconfig(environment)
    is_plugin = Path(program).name.startswith("kubectl-")
    return str(embedded) if embedded is not None and not is_plugin else None


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and not Path(_DEFAULT_KUBECONFIG).expanduser().exists()


def _require_file(path: str) -> None:
    if not any(Path(part).exists() for part in path.split(os.pathsep)):
        raise CliError(
            f"There is no kubeconfig at {path}.",
            "Pass --kubeconfig or set KUBECONFIG, or start a cluster on this machine with `longshore up`.",
        )


def _namespace_of(path: str, context: str | None) -> str:
    from kubernetes import config

    contexts, active = config.list_kube_config_contexts(path)
    chosen: dict[str, Any] = next((item for item in contexts if item["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")
