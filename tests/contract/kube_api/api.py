"""A plain HTTP client for the contract tests: what it sends is what the test says, no more."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient

Json = Any
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

WIDGET = {"apiVersion": "contract.example.com/v1", "kind": "Widget"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: urllib3.HTTPHeaderDict
    text: str

    @property
    def json(self) -> Json:
        return json.loads(self.text)


class Api:
    """Requests to one cluster, as the user of a kubeconfig or with another token."""

    def __init__(self, kubeconfig: str, token: str | None = None) -> None:
        client = config.new_client_from_config(kubeconfig)
        if token is not None:
            # A client certificate would win over the token.
            client.configuration.cert_file = client.configuration.key_file = None
            client = ApiClient(client.configuration)
        self.kubeconfig = kubeconfig
        self.url = client.configuration.host
        self._pool = client.rest_client.pool_manager
        bearer = next((a["value"] for a in client.configuration.auth_settings().values()), None)
        self._token = bearer if token is None else f"Bearer {token}" if token else None

    def as_token(self, token: str) -> "Api":
        """The same cluster with another bearer token; an empty one sends none."""
        return Api(self.kubeconfig, token)

    def _open(
        self, method: str, path: str, body: Json, headers: dict[str, str], stream: bool
    ) -> urllib3.BaseHTTPResponse:
        sent = {"User-Agent": "contract/1", **headers}
        if self._token:
            sent["Authorization"] = self._token
        data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
        response: urllib3.BaseHTTPResponse = self._pool.request(
            method,
            self.url + path,
            body=data,
            headers=sent,
            preload_content=not stream,
            retries=False,
            timeout=_LIMIT_S,
        )
        return response

    def request(
        self, method: str, path: str, body: Json = None, /, content_type: str = "", accept: str = "", **query: Any
    ) -> Answer:
        headers = {"Accept": accept or "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        found = self._open(method, _with_query(path, query), body, headers, stream=False)
        return Answer(found.status, found.headers, found.data.decode())

    def get(self, path: str, /, **query: Any) -> Answer:
        return self.request("GET", path, **query)

    def post(self, path: str, body: Json, /, **query: Any) -> Answer:
        return self.request("POST", path, body, **{"content_type": "application/json", **query})

    def put(self, path: str, body: Json, /, **query: Any) -> Answer:
        return self.request("PUT", path, body, **{"content_type": "application/json", **query})

    def patch(self, path: str, body: Json, /, kind: str = MERGE, **query: Any) -> Answer:
        return self.request("PATCH", path, body, content_type=kind, **query)

    def apply(self, path: str, body: Json, manager: str, /, **query: Any) -> Answer:
        return self.request("PATCH", path, body, content_type=APPLY, fieldManager=manager, **query)

    def delete(self, path: str, body: Json = None, /, **query: Any) -> Answer:
        return self.request("DELETE", path, body, **({"content_type": "application/json"} if body else {}), **query)

    def watch(self, path: str, /, accept: str = "", **query: Any) -> list[Json]:
        """All events until the server ends the watch (after ``timeoutSeconds``)."""
        answer = self.request("GET", path, accept=accept, **{"watch": "true", "timeoutSeconds": 2, **query})
        assert answer.status == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    @contextmanager
    def watching(self, path: str, /, accept: str = "", **query: Any) -> Iterator["Events"]:
        """A watch that runs beside the test."""
        full = _with_query(path, {"watch": "true", "timeoutSeconds": _WATCH_S, **query})
        response = self._open("GET", full, None, {"Accept": accept or "application/json"}, stream=True)
        events = Events(response)
        try:
            yield events
        finally:
            events.close()


def is_established(event: Json) -> bool:
    """Whether a definition is served."""
    conditions = event["object"].get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


_CHUNK_BYTES = 1 << 16
"""What is read at once at most; what arrives is read when it does."""
_LIMIT_S = 120.0
"""Time for an event to arrive, on however busy a machine."""
_WATCH_S = 600
"""Time after which the server would end a watch: longer than several events may take to arrive."""


class Events:
    """Collects a watch's events in a thread."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._seen: list[Json] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        buffer = b""
        try:
            for chunk in self._response.stream(_CHUNK_BYTES, decode_content=False):
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                with self._more:
                    self._seen += [json.loads(line) for line in lines if line]
                    self._more.notify_all()
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            pass  # closed by the test

    def take(self, count: int, within_s: float = _LIMIT_S) -> list[Json]:
        """The first ``count`` events, as soon as they are there."""
        with self._more:
            assert self._more.wait_for(lambda: len(self._seen) >= count, within_s), self._seen
            return self._seen[:count]

    def until(self, holds: Callable[[Json], Any], within_s: float = _LIMIT_S) -> Json:
        """The first event that fits, as soon as it is there."""
        count = 1
        while not holds(event := self.take(count, within_s)[-1]):
            count += 1
        return event

    def to_the_end(self) -> list[Json]:
        """All events, once the server has ended the watch."""
        self._thread.join(_LIMIT_S)
        assert not self._thread.is_alive(), self._seen
        return self._seen

    def close(self) -> None:
        """Cuts the connection, which also ends the reader."""
        connection: Any = self._response.connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)


def eventually(what: str, holds: Callable[[], bool], within_s: float = _LIMIT_S) -> None:
    """Wait for what nothing tells: rights and policies take effect within a moment on a real cluster."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)


def role_binding(name: str, namespace: str, account: str, role: str, kind: str = "Role") -> dict[str, Any]:
    """Gives a role to a service account."""
    return {
        "metadata": {"name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
    }


def widget(name: str = "w", **spec: Any) -> dict[str, Any]:
    """A custom resource of `widgets.yaml`."""
    return {**WIDGET, "metadata": {"name": name}, "spec": {"size": "small", **spec}}


def _with_query(path: str, query: dict[str, Any]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
