"""Writes core/v1 Events, folding repetitions into a count as Kubernetes components do."""

import logging
from collections.abc import Callable

from longshore_kube.client import Client
from longshore_kube.errors import KubeError
from longshore_kube.resources import EVENTS, Json
from longshore_kube.times import rfc3339

_log = logging.getLogger(__name__)
_MAX_KEPT = 2000


class EventRecorder:
    """Records events of one component. `now` gives Unix seconds."""

    def __init__(self, client: Client, component: str, now: Callable[[], float], host: str = "") -> None:
        self._client = client
        self._source = {"component": component, **({"host": host} if host else {})}
        self._now = now
        self._seen: dict[tuple[str, ...], Json] = {}

    async def normal(self, obj: Json, reason: str, message: str) -> None:
        """Record that something expected happened to `obj`."""
        await self._record(obj, "Normal", reason, message)

    async def warning(self, obj: Json, reason: str, message: str) -> None:
        """Record that something went wrong with `obj`."""
        await self._record(obj, "Warning", reason, message)

    async def _record(self, obj: Json, kind: str, reason: str, message: str) -> None:
        identity = (obj["metadata"].get("uid", ""), kind, reason, message)
        try:
            earlier = self._seen.get(identity)
            self._seen[identity] = await (
                self._create(obj, kind, reason, message) if earlier is None else self._count(earlier)
            )
        except KubeError as error:
            # An event is a courtesy: losing one must never stop the work it reports.
            self._seen.pop(identity, None)
            _log.debug("event %s of %s: %s", reason, obj["metadata"]["name"], error)
        while len(self._seen) > _MAX_KEPT:
            self._seen.pop(next(iter(self._seen)))

    async def _create(self, obj: Json, kind: str, reason: str, message: str) -> Json:
        meta, now = obj["metadata"], self._now()
        namespace = meta.get("namespace") or "default"
        body = {
            "metadata": {"name": f"{meta['name']}.{int(now * 1e9):x}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": obj.get("apiVersion", "v1"),
                "kind": obj.get("kind", "Pod"),
                "namespace": meta.get("namespace", ""),
                "name": meta["name"],
                "uid": meta.get("uid", ""),
                "resourceVersion": meta.get("resourceVersion", ""),
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
            "firstTimestamp": rfc3339(now),
            "lastTimestamp": rfc3339(now),
            "count": 1,
        }
        return await self._client.create(EVENTS, body, namespace)

    async def _count(self, earlier: Json) -> Json:
        meta = earlier["metadata"]
        change = {"count": earlier["count"] + 1, "lastTimestamp": rfc3339(self._now())}
        return await self._client.patch(EVENTS, meta["name"], meta["namespace"], change)
