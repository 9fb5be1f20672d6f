"""Which cluster and namespace a command is meant for."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from longshore_client import state

if TYPE_CHECKING:
    from longshore_client.kube import Kube
    from longshore_kube.access import Access
    from longshore_kube.blocking import Blocking

_DEFAULT_KUBECONFIG = "~/.kube/config"


@dataclass(frozen=True)
class Target:
    """Cluster and namespace by the common options; an unset option follows the kubeconfig."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def connect(self) -> "Kube":
        """Return a client for the cluster; those for the same cluster and user share their connections.

        Raises:
            AccessError: the kubeconfig does not exist, is of no use, or has no such context.
        """
        # Imported here for the commands that need no cluster, and for --help.
        from longshore_client.kube import Kube

        access = self._access()
        return Kube(_connection(access), self.namespace or access.namespace)

    def _access(self) -> "Access":
        from longshore_kube.access import from_kubeconfig, in_cluster

        path, default = kubeconfig_path(self), Path(_DEFAULT_KUBECONFIG).expanduser()
        is_in_pod = path is None and "KUBERNETES_SERVICE_HOST" in os.environ and not default.exists()
        return in_cluster() if is_in_pod else from_kubeconfig(path or default, self.context)


@lru_cache(maxsize=8)
def _connection(access: "Access") -> "Blocking":
    """Return one connection per target: each has a thread, and a notebook may read a job a thousand times."""
    from longshore_client.kube import FIELD_MANAGER
    from longshore_kube.blocking import Blocking

    return Blocking(access, FIELD_MANAGER)


def kubeconfig_path(target: Target, environment: Mapping[str, str] = os.environ,
                    program: str = sys.argv[0]) -> str | None:  # fmt: skip
    """Return --kubeconfig, $KUBECONFIG or that of this directory's embedded cluster.

    None: the default file, or the pod's own.

    Called as a kubectl plugin the embedded cluster is left out, so that kubectl and its plugin agree.
    """
    if target.kubeconfig is not None:
        return str(target.kubeconfig.expanduser())
    if environment.get("KUBECONFIG"):
        return environment["KUBECONFIG"]
    embedded = state.embedded_kubeconfig(environment)
    is_plugin = Path(program).name.startswith("kubectl-")
    return str(embedded) if embedded is not None and not is_plugin else None
