"""Requests to one API server: objects in, objects out, with a time limit, a size limit and retries on every call."""

import asyncio
import json
import math
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Self, TypedDict, Unpack

import aiohttp

from longshore_kube.access import Access
from longshore_kube.errors import ApiError, KubeError, Unreachable, Unreadable, api_error
from longshore_kube.resources import Json, Resource
from longshore_kube.session import open_session

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 30
WATCH_SERVER_TIMEOUT_S = 120
WATCH_CLIENT_TIMEOUT_S = 150
"""Longer than the server's: a watch that outlives it is broken."""
PAGE_LIMIT = 500
MAX_ANSWER_BYTES = 4 << 20
"""Twice what etcd takes for one object. An answer is held at once, and as Python objects it can be ten times larger."""
JSON_TYPE = "application/json"
APPLY_TYPE = "application/apply-patch+yaml"
METADATA_TYPE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type of an object, or of the objects in a watch, without spec and status."""
METADATA_LIST_TYPE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_MAX_TRIES = 4
_MAX_RETRY_AFTER_S = 10.0
_TRANSIENT_CODES = frozenset({500, 502, 503, 504})
_HINDRANCES = (aiohttp.ClientError, TimeoutError, OSError)


class Patch(Enum):
    """Patch formats of the API, by their content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class RequestOptions(TypedDict, total=False):
    """What a request may have."""

    query: Mapping[str, str]
    body: Json | list[Json] | None
    content_type: str
    accept: str


class Client:
    """One user's connection to one API server. Use it as an async context manager.

    The user agent is also the field manager. Every method raises `ApiError` for an answer other than success,
    `Unreachable` where there is none, `Unreadable` for one that cannot be taken, and `AccessError` for credentials that
    cannot be had.
    """

    def __init__(
        self, access: Access, user_agent: str, *, request_timeout_s: float = REQUEST_TIMEOUT_S, max_connections: int = 0
    ) -> None:
        self.access = access
        self._user_agent = user_agent
        self._request_timeout_s = request_timeout_s
        # Watches hold a connection each, so their number must not be bounded where many run.
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = await open_session(self.access, self._user_agent, max_connections=self._max_connections)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, resource: Resource, name: str, namespace: str = "", subresource: str = "") -> Json:
        """Read one object."""
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def create(
        self, resource: Resource, body: Json, namespace: str = "", name: str = "", subresource: str = ""
    ) -> Json:
        """Create an object, or post to a subresource of the object `name`."""
        return await self.request("POST", resource.path(namespace, name, subresource), body=_typed(resource, body))

    async def replace(self, resource: Resource, body: Json, subresource: str = "") -> Json:
        """Replace the object that `body` names. A conflict says that it has changed since it was read."""
        meta = body["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        return await self.request("PUT", path, body=_typed(resource, body))

    async def patch(self, resource: Resource, name: str, namespace: str, body: Json | list[Json], *,
                    kind: Patch = Patch.MERGE, subresource: str = "") -> Json:  # fmt: skip
        """Patch one object."""
        path = resource.path(namespace, name, subresource)
        return await self.request("PATCH", path, body=body, content_type=kind.value)

    async def apply(self, resource: Resource, body: Json, subresource: str = "", *, accept: str = JSON_TYPE) -> Json:
        """Apply an object server-side: our fields become as in `body`, those of others stay."""
        meta, query = body["metadata"], {"fieldManager": self._user_agent, "force": "true"}
        path, full = resource.path(meta.get("namespace"), meta["name"], subresource), _typed(resource, body)
        return await self.request("PATCH", path, query=query, body=full, content_type=APPLY_TYPE, accept=accept)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete one object, dependants in the background; with `uid`, only that incarnation of it."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self.request("DELETE", resource.path(namespace, name), body=options)

    async def pages(
        self, path: str, *, labels: str = "", fields: str = "", metadata_only: bool = False
    ) -> AsyncGenerator[Json, None]:
        """List a collection in pages, of as many objects as fit into an answer of bounded size.

        Raises:
            Gone: the list took so long that its continuation expired.
            Unreadable: a single object does not fit.
        """
        query, limit = {"labelSelector": labels, "fieldSelector": fields}, PAGE_LIMIT
        accept = METADATA_LIST_TYPE if metadata_only else JSON_TYPE
        while True:
            try:
                page = await self.request("GET", path, query=query | {"limit": str(limit)}, accept=accept)
            except Unreadable:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            yield page
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return
            limit = min(PAGE_LIMIT, 2 * limit)

    async def items(self, path: str, *, labels: str = "", fields: str = "") -> list[Json]:
        """Return the objects of a collection."""
        pages = self.pages(path, labels=labels, fields=fields)
        return [item async for page in pages for item in page.get("items") or ()]

    async def watch(
        self,
        path: str,
        version: str,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield changes of a collection after a resource version, as (type, object), until the server ends the watch.

        `on_accepted` is called when the server has taken the request; until something changes, nothing else comes.

        Raises:
            Gone: that version is no longer kept.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "labelSelector": labels,
            "fieldSelector": fields,
            "timeoutSeconds": str(WATCH_SERVER_TIMEOUT_S),
        }
        accept = METADATA_TYPE if metadata_only else JSON_TYPE
        async with self._answer("GET", path, WATCH_CLIENT_TIMEOUT_S, query=query, accept=accept) as response:
            on_accepted()
            async for line in _lines(response, max_bytes=MAX_ANSWER_BYTES):
                kind, obj = _event(line)
                if kind == "ERROR":
                    raise api_error(obj.get("code", 500), obj)
                yield kind, obj

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Json:
        """Send a request and return the JSON object of its answer. Temporary errors are retried."""
        for num_tries in range(1, _MAX_TRIES + 1):
            try:
                async with self._answer(method, path, self._request_timeout_s, **options) as response:
                    return _parsed(await _read(response))
            except (ApiError, Unreachable) as error:
                pause_s = _pause_s(error, num_tries, is_repeatable=_is_repeatable(method, options.get("body")))
                if pause_s is None or num_tries == _MAX_TRIES:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def text_lines(
        self, path: str, query: Mapping[str, str], *, timeout_s: float | None
    ) -> AsyncGenerator[str, None]:
        """Yield lines of a text as they arrive, as those of a pod's log."""
        async with self._answer("GET", path, timeout_s, query=query, accept="*/*") as response:
            async for line in _lines(response, keeps_rest=True):
                yield line.decode(errors="replace")

    async def websocket(
        self, path: str, query: list[tuple[str, str]], protocols: tuple[str, ...]
    ) -> aiohttp.ClientWebSocketResponse:
        """Return a connection to a program in a pod; see `pods/exec`."""
        assert self._session is not None, "use the client as a context manager"
        try:
            return await self._session.ws_connect(
                self.access.server + path, params=query, protocols=protocols, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            raise api_error(error.status, {"message": error.message}) from error
        except _HINDRANCES as error:
            raise self._unreachable(error, CONNECT_TIMEOUT_S) from error

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, timeout_s: float | None, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        body, headers = options.get("body"), {"Accept": options.get("accept", JSON_TYPE)}
        if body is not None:
            headers["Content-Type"] = options.get("content_type", JSON_TYPE)
        assert self._session is not None, "use the client as a context manager"
        try:
            async with self._session.request(
                method,
                self.access.server + path,
                params={name: value for name, value in options.get("query", {}).items() if value},
                data=json.dumps(body).encode() if body is not None else None,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            ) as response:
                if response.status >= 400:
                    raise await _error(response)
                yield response
        except KubeError:
            raise
        except _HINDRANCES as error:
            raise self._unreachable(error, timeout_s) from error

    def _unreachable(self, error: Exception, timeout_s: float | None) -> Unreachable:
        was_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        return Unreachable(f"{self.access.server} does not answer: {_why(error, timeout_s)}", was_sent=was_sent)


async def _lines(
    response: aiohttp.ClientResponse, *, max_bytes: float = math.inf, keeps_rest: bool = False
) -> AsyncIterator[bytes]:
    """Yield lines of any length: a stream reader has a limit. What follows the last line end may have been cut."""
    pending = b""
    async for chunk in response.content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        if len(pending) > max_bytes:
            raise Unreadable(f"one line is larger than {max_bytes / (1 << 20):.0f} MiB")
        for line in lines:
            yield line
    if pending and keeps_rest:
        yield pending


def _typed(resource: Resource, body: Json) -> Json:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size_bytes = [], 0
    async for part in response.content.iter_any():
        size_bytes += len(part)
        if size_bytes > MAX_ANSWER_BYTES:
            raise Unreadable(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _parsed(text: bytes) -> Json:
    try:
        answer = json.loads(text)
    except RecursionError as error:
        raise Unreadable("the object is nested too deeply to be read") from error
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unreadable("the answer is no object of Kubernetes: something else may listen there")
    return answer


def _event(line: bytes) -> tuple[str, Json]:
    try:
        event = _parsed(line)
        kind, obj = event["type"], event["object"]
        _ = obj.get("code") if kind == "ERROR" else obj["metadata"]["resourceVersion"]
    except (Unreadable, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"a watch was answered with what is no event: {line[:80].decode(errors='replace')}") from error
    return kind, obj


async def _error(response: aiohttp.ClientResponse) -> ApiError:
    text = await _read(response)
    try:
        status: object = _parsed(text)
    except Unreadable:
        status = text.decode(errors="replace")
    return api_error(response.status, status, response.headers.get("Retry-After", ""))


def _is_repeatable(method: str, body: Json | list[Json] | None) -> bool:
    """Return whether doing it twice is the same as once: a create is, if it names the object."""
    return method != "POST" or (isinstance(body, dict) and "name" in (body.get("metadata") or {}))


def _pause_s(error: ApiError | Unreachable, num_tries: int, *, is_repeatable: bool) -> float | None:
    """Return how long to wait before the next try; None: there is none."""
    backoff_s = 0.2 * 2 ** (num_tries - 1) + random.uniform(0, 0.2)
    if isinstance(error, Unreachable):
        return backoff_s if is_repeatable or not error.was_sent else None
    if error.retry_after_s is not None:
        # The server did nothing, and says when it will.
        return min(error.retry_after_s, _MAX_RETRY_AFTER_S)
    return backoff_s if error.code == 429 or (is_repeatable and error.code in _TRANSIENT_CODES) else None


def _why(error: Exception, timeout_s: float | None) -> str:
    """Return the innermost reason, in one line."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return " ".join(str(error.certificate_error).split())
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {CONNECT_TIMEOUT_S} s"
    if isinstance(error, TimeoutError):
        return f"it took longer than {timeout_s:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else str(error.os_error.strerror or error.os_error)
    return " ".join(str(error).split()) or type(error).__name__
