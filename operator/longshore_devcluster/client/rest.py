"""Requests to the API server: objects in, objects out, and watches."""

import json
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any, Self

import aiohttp

from longshore_devcluster.client.config import ClusterAccess
from longshore_devcluster.client.objects import Json
from longshore_devcluster.client.resources import Resource

_PAGE_LIMIT = 500


class Patch(Enum):
    """The patch formats of the API, by their content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """An answer of the API server other than success. `status` is the HTTP code, `reason` the Status reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason

    @property
    def not_found(self) -> bool:
        """The object does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """The object exists already, or has changed since it was read."""
        return self.status == 409

    @property
    def gone(self) -> bool:
        """The resource version asked for is no longer kept: list again."""
        return self.status == 410


class Client:
    """One identity's connection to one API server. Use it as an async context manager, or call `close`."""

    def __init__(self, access: ClusterAccess, user_agent: str) -> None:
        self.access = access
        self._headers = {"User-Agent": user_agent, "Accept": "application/json"}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, resource: Resource, name: str, namespace: str = "", subresource: str = "") -> Json:
        """Read one object. Errors: ApiError."""
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def create(
        self, resource: Resource, body: Json, namespace: str = "", name: str = "", subresource: str = ""
    ) -> Json:
        """Create an object, or post to a subresource of the object `name`. Errors: ApiError."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self.request("POST", resource.path(namespace, name, subresource), body=full)

    async def replace(self, resource: Resource, body: Json, subresource: str = "") -> Json:
        """Replace the object that `body` names. Errors: ApiError (409 when it has changed meanwhile)."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        meta = body["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        return await self.request("PUT", path, body=full)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        body: Json | list[Json],
        *,
        kind: Patch = Patch.MERGE,
        subresource: str = "",
    ) -> Json:
        """Patch one object. Errors: ApiError."""
        path = resource.path(namespace, name, subresource)
        return await self.request("PATCH", path, body=body, content_type=kind.value)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete one object; with `uid`, only that incarnation of it. Errors: ApiError."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self.request("DELETE", resource.path(namespace, name), body=options)

    async def list_all(
        self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> tuple[list[Json], str]:
        """Every object of a collection, read in pages, and the resource version from which to watch.

        Errors: ApiError.
        """
        query = {"limit": str(_PAGE_LIMIT), "labelSelector": labels, "fieldSelector": fields}
        items: list[Json] = []
        while True:
            page = await self.request("GET", resource.path(namespace), query=query)
            items += page.get("items") or []
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return items, page["metadata"]["resourceVersion"]

    async def watch(
        self, resource: Resource, resource_version: str, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Json]]:
        """The changes after a resource version, as (type, object), until the server ends the watch.

        Errors: ApiError, with `gone` set when that version is no longer kept.
        """
        query = _present(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            labelSelector=labels,
            fieldSelector=fields,
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        url = self.access.server + resource.path(namespace)
        async with self._open().get(url, params=query, timeout=timeout) as response:
            await _raise_for_status(response)
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 500), event["object"])
                yield event["type"], event["object"]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Json | list[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """One request with a JSON answer. Errors: ApiError; aiohttp.ClientError when there is no answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if body is not None else {}
        async with self._open().request(
            method, self.access.server + path, params=_present(**(query or {})), data=data, headers=headers
        ) as response:
            await _raise_for_status(response)
            answer = await response.json(content_type=None)
            assert isinstance(answer, dict)
            return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Watches stay open for good, so the number of connections must not be bounded.
            connector = aiohttp.TCPConnector(ssl=self.access.ssl_context(), limit=0)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        return self._session


def _present(**query: str) -> dict[str, str]:
    return {name: value for name, value in query.items() if value}


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        status: Any = json.loads(text)
    except ValueError:
        status = {"message": text.strip()}
    raise _error(response.status, status if isinstance(status, dict) else {"message": text})


def _error(code: int, status: Json) -> ApiError:
    return ApiError(code, status.get("reason") or "", status.get("message") or "")


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # aiohttp bounds the length of a line; one object may be larger.
    rest = b""
    async for chunk in response.content.iter_any():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            if line:
                yield line
