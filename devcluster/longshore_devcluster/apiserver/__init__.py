"""An embedded Kubernetes API server: development and tests only."""

from longshore_devcluster.apiserver.podstreams import PodStreams
from longshore_devcluster.apiserver.server import ApiServer

__all__ = ["ApiServer", "PodStreams"]
