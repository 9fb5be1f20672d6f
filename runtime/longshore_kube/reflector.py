"""Follows a collection: list, watch, resume, and list again where resuming is impossible."""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from longshore_kube.client import Client
from longshore_kube.errors import Gone, KubeError, Unreadable
from longshore_kube.resources import Json

T = TypeVar("T")
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 15.0
_HEALTHY_STREAM_S = 5.0
"""A stream that lasted so long was no failure, even if nothing happened meanwhile."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """The collection as it is. What was known and is not in it has gone."""

    items: list[T]
    version: int
    """Resource version of the list: objects that are newer are not missing from it."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """One change."""

    kind: str
    """ADDED, MODIFIED or DELETED."""
    item: T


OnError = Callable[[KubeError, float], None]
"""Called with a failure and the seconds since the server was last there. Raises to give up."""


def log_failure(error: KubeError, silence_s: float) -> None:
    """Log the failure and let the reflector retry, without a limit."""
    _log.warning("following a collection was interrupted: %s", error)


class Reflector(Generic[T]):
    """Turns a collection into what its user keeps of each object (`view`; None: nothing), and follows it."""

    def __init__(
        self,
        client: Client,
        path: str,
        view: Callable[[Json], T | None],
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        on_error: OnError = log_failure,
    ) -> None:
        self._client = client
        self._path = path
        self._view = view
        self._labels = labels
        self._fields = fields
        self._metadata_only = metadata_only
        self._on_error = on_error
        self.last_contact_s = time.monotonic()
        """Monotonic time of the last answer of the API server."""

    async def changes(self) -> AsyncGenerator[Listed[T] | Changed[T], None]:
        """Yield `Listed`, then what changes, for ever. After an expired watch `Listed` comes again."""
        pause_s, version = _FIRST_PAUSE_S, ""
        self.last_contact_s = gone_since_s = time.monotonic()
        while True:
            began_s, has_contact, accepted_s = time.monotonic(), False, math.inf

            def accept() -> None:
                nonlocal accepted_s
                self.last_contact_s = accepted_s = time.monotonic()

            try:
                if not version:
                    listed = await self._list()
                    version = str(listed.version)
                    yield listed
                watch = self._client.watch(
                    self._path,
                    version,
                    labels=self._labels,
                    fields=self._fields,
                    metadata_only=self._metadata_only,
                    on_accepted=accept,
                )
                async with aclosing(watch):
                    async for kind, obj in watch:
                        self.last_contact_s, has_contact = time.monotonic(), True
                        if kind != "BOOKMARK" and (item := self._view(obj)) is not None:
                            yield Changed(kind, item)
                        version = obj["metadata"]["resourceVersion"]
                self.last_contact_s = time.monotonic()
            except Gone:
                version = ""
            except KubeError as error:
                if isinstance(error, Unreadable):
                    # The same event would come again.
                    version = ""
                failed_s = time.monotonic()
                if failed_s - accepted_s > _HEALTHY_STREAM_S:
                    gone_since_s = failed_s  # The server was there, and had nothing to say.
                self._on_error(error, failed_s - max(self.last_contact_s, gone_since_s))
            if has_contact or time.monotonic() - began_s > _HEALTHY_STREAM_S:
                pause_s = _FIRST_PAUSE_S
            else:
                # Many followers lose their server at the same moment.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _list(self) -> Listed[T]:
        items, version = [], 0
        pages = self._client.pages(
            self._path, labels=self._labels, fields=self._fields, metadata_only=self._metadata_only
        )
        async for page in pages:
            items += [item for obj in page.get("items") or () if (item := self._view(obj)) is not None]
            version = int(page["metadata"]["resourceVersion"])
        self.last_contact_s = time.monotonic()
        return Listed(items, version)
