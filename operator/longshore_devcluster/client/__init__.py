"""A small asyncio client of the Kubernetes API, shared by the components of the embedded cluster.

It speaks JSON over HTTPS to any API server: the embedded one or a real one.
"""

from longshore_devcluster.client.config import ClusterAccess
from longshore_devcluster.client.events import EventRecorder
from longshore_devcluster.client.informer import Informer
from longshore_devcluster.client.objects import Json, Key, key_of, rfc3339
from longshore_devcluster.client.resources import Resource
from longshore_devcluster.client.rest import ApiError, Client

__all__ = [
    "ApiError",
    "Client",
    "ClusterAccess",
    "EventRecorder",
    "Informer",
    "Json",
    "Key",
    "Resource",
    "key_of",
    "rfc3339",
]
