"""A small Kubernetes client: what the operator needs, with time limits and retries on every call."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from longshore.api import names
from longshore_operator.kubeconfig import Access

Object = dict[str, Any]

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 10
WATCH_SERVER_TIMEOUT_S = 120
WATCH_CLIENT_TIMEOUT_S = 150
"""Longer than the server's: a watch that outlives it is broken."""
PAGE_LIMIT = 500
MAX_ANSWER_BYTES = 4 << 20
"""Twice what etcd takes for one object. An answer is held at once, and as Python objects it can be ten times larger."""
METADATA_TYPE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Media type of an object, or of the objects in a watch, without spec and status."""
METADATA_LIST_TYPE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_JSON = "application/json"
_MAX_TRIES = 4
_MAX_RETRY_AFTER_S = 10.0
_TRANSIENT_CODES = frozenset({429, 500, 502, 503, 504})


class ApiError(Exception):
    """An answer of the API server other than success."""

    def __init__(self, code: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class Unreadable(Exception):
    """An answer that is too large, or nested too deeply, to be read."""


class Gone(Exception):
    """The resource version is too old to watch or list from: list anew."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of a kind live."""

    prefix: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of a collection or an object."""
        parts = [self.prefix, *(("namespaces", namespace) if namespace else ()), self.plural]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_KUEUE = "/apis/kueue.x-k8s.io"
RESOURCES = {
    "APIGroup": Resource("", "apis"),
    "PriorityClass": Resource("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    **{
        f"{kind}@{version}": Resource(f"{_KUEUE}/{version}", plural)
        for kind, plural in (
            ("Workload", "workloads"),
            ("ResourceFlavor", "resourceflavors"),
            ("WorkloadPriorityClass", "workloadpriorityclasses"),
        )
        for version in ("v1beta1", "v1beta2")
    },
    "ConfigMap": Resource("/api/v1", "configmaps"),
    "Event": Resource("/api/v1", "events"),
    "Lease": Resource("/apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": Resource("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": Resource("/api/v1", "persistentvolumeclaims"),
    "Pod": Resource("/api/v1", "pods"),
    "RLJob": Resource(f"/apis/{names.API_VERSION}", names.PLURAL),
    "Role": Resource(_RBAC, "roles"),
    "RoleBinding": Resource(_RBAC, "rolebindings"),
    "Secret": Resource("/api/v1", "secrets"),
    "Service": Resource("/api/v1", "services"),
    "ServiceAccount": Resource("/api/v1", "serviceaccounts"),
}


class Kube:
    """Client of one API server; use it as an async context manager."""

    def __init__(self, access: Access, field_manager: str = names.OPERATOR_FIELD_MANAGER) -> None:
        self._access = access
        self._field_manager = field_manager
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        context = self._access.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context if context is not None else True, limit=64),
            auth=basic_auth(self._access),
            headers={"User-Agent": self._field_manager},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, kind: str, namespace: str, name: str, *, metadata_only: bool = False) -> Object | None:
        """The object, or None if there is none of that name.

        Raises:
            Unreadable: it is too large or nested too deeply; its metadata can be had.
        """
        accept = METADATA_TYPE if metadata_only else _JSON
        try:
            return await self._call("GET", RESOURCES[kind].path(namespace, name), accept=accept)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def apply(self, manifest: Object, subresource: str | None = None) -> Object:
        """Server-side apply: our fields become as in the manifest, those of others stay. Returns the metadata only."""
        path = _path_of(manifest, subresource)
        query = {"fieldManager": self._field_manager, "force": "true"}
        return await self._call("PATCH", path, query, manifest, "application/apply-patch+yaml", METADATA_TYPE)

    async def label(self, kind: str, namespace: str, name: str, uid: str, labels: dict[str, str]) -> None:
        """Set labels of the object with this uid; one that is gone is no error."""
        change = {"metadata": {"uid": uid, "labels": labels}}
        path, query = RESOURCES[kind].path(namespace, name), {"fieldManager": self._field_manager}
        try:
            await self._call("PATCH", path, query, change, "application/merge-patch+json")
        except ApiError as error:
            # 409: the name belongs to a newer object by now.
            if error.code not in (404, 409):
                raise

    async def merge(
        self, kind: str, namespace: str, name: str, change: Object, subresource: str | None = None
    ) -> Object | None:
        """Merge patch; None if the object is gone, or is not of the version that the change names."""
        path, query = RESOURCES[kind].path(namespace, name, subresource), {"fieldManager": self._field_manager}
        try:
            return await self._call("PATCH", path, query, change, "application/merge-patch+json")
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return None

    async def create(self, manifest: Object, kind: str | None = None) -> Object | None:
        """The created object, or None if one of that name exists already. `kind`: in place of the manifest's."""
        metadata = manifest["metadata"]
        path = RESOURCES[kind or manifest["kind"]].path(metadata["namespace"])
        try:
            return await self._call("POST", path, {"fieldManager": self._field_manager}, manifest)
        except ApiError as error:
            if error.code == 409 and error.reason == "AlreadyExists":
                return None
            raise

    async def replace(self, manifest: Object) -> Object:
        """Write a whole object, which carries the resource version that it was read with."""
        return await self._call("PUT", _path_of(manifest), {"fieldManager": self._field_manager}, manifest)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid, dependants in the background; one that is gone is no error."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._call("DELETE", RESOURCES[kind].path(namespace, name), None, options)
        except ApiError as error:
            # 409: the name belongs to a newer object by now.
            if error.code not in (404, 409):
                raise

    async def pages(
        self, kind: str, namespace: str | None, selector: str, *, metadata_only: bool = False
    ) -> AsyncIterator[Object]:
        """List in pages, of as many objects as fit into an answer of bounded size.

        Raises:
            Gone: the list took so long that its continuation expired.
            Unreadable: a single object does not fit.
        """
        query, limit = {"labelSelector": selector}, PAGE_LIMIT
        accept = METADATA_LIST_TYPE if metadata_only else _JSON
        while True:
            query["limit"] = str(limit)
            try:
                page = await self._call("GET", RESOURCES[kind].path(namespace), query, accept=accept)
            except Unreadable:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            except ApiError as error:
                if error.code == 410:
                    raise Gone(error.message) from error
                raise
            yield page
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]
            limit = min(PAGE_LIMIT, 2 * limit)

    async def watch(
        self, kind: str, namespace: str | None, selector: str, resource_version: str
    ) -> AsyncIterator[Object]:
        """Events since a resource version, until the server ends the stream.

        Raises:
            Gone: the resource version is too old.
            ApiError, aiohttp.ClientError, TimeoutError: the stream broke; watch again from the last version.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": resource_version,
            "timeoutSeconds": str(WATCH_SERVER_TIMEOUT_S),
        }
        timeout = aiohttp.ClientTimeout(total=WATCH_CLIENT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async with self._request("GET", RESOURCES[kind].path(namespace), query, timeout=timeout) as response:
            if response.status == 410:
                raise Gone((await _error(response)).message)
            if response.status >= 400:
                raise await _error(response)
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    if status.get("code") == 410:
                        raise Gone(status.get("message", ""))
                    raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                yield event

    async def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_transient), stop=stop_after_attempt(_MAX_TRIES), wait=_wait, reraise=True
        )
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async for attempt in retrying:
            with attempt:
                async with self._request(method, path, query, body, content_type, accept, timeout=timeout) as response:
                    if response.status >= 400:
                        raise await _error(response)
                    return _parsed(await _read(response))
        raise AssertionError("retrying ends with a result or an exception")

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None,
        body: Object | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        *,
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        assert self._session is not None, "use the client as a context manager"
        headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        token = self._access.bearer_token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self._session.request(
            method,
            self._access.server + path,
            params=query,
            data=json.dumps(body).encode() if body is not None else None,
            headers=headers,
            timeout=timeout,
            server_hostname=self._access.server_name,
        )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size_bytes = [], 0
    async for part in response.content.iter_any():
        size_bytes += len(part)
        if size_bytes > MAX_ANSWER_BYTES:
            raise Unreadable(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        parts.append(part)
    return b"".join(parts)


def _parsed(text: bytes) -> Object:
    try:
        answer: Object = json.loads(text)
    except RecursionError as error:
        raise Unreadable("the object is nested too deeply to be read") from error
    return answer


def basic_auth(access: Access) -> aiohttp.BasicAuth | None:
    """Name and password of a kubeconfig."""
    if access.username is None:
        return None
    return aiohttp.BasicAuth(access.username, access.password or "")


def _path_of(manifest: Object, subresource: str | None = None) -> str:
    metadata = manifest["metadata"]
    return RESOURCES[manifest["kind"]].path(metadata["namespace"], metadata["name"], subresource)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, ApiError):
        return error.code in _TRANSIENT_CODES
    return isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | asyncio.TimeoutError)


_backoff = wait_exponential_jitter(multiplier=0.2, max=5, jitter=0.2)


def _wait(state: RetryCallState) -> float:
    """What the server asks for, else exponential with jitter."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, ApiError) and error.retry_after_s is not None:
        return min(error.retry_after_s, _MAX_RETRY_AFTER_S)
    return _backoff(state)


async def _error(response: aiohttp.ClientResponse) -> ApiError:
    text = await response.text()
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    retry_after = response.headers.get("Retry-After", "")
    return ApiError(
        response.status,
        status.get("reason", ""),
        status.get("message") or text.strip()[:500] or f"HTTP {response.status}",
        float(retry_after) if retry_after.isdigit() else None,
    )


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: one event can be larger than a stream reader's line limit."""
    pending = b""
    async for chunk in response.content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
