"""OpenAPI v3 (and the least of v2) for kubectl and Helm."""

import hashlib
import time
from email.utils import formatdate

import orjson
from aiohttp import web

from longshore_devcluster.apiserver.discovery import VERSION
from longshore_devcluster.apiserver.errors import PlainNotFound
from longshore_devcluster.apiserver.openapi.schemas import definitions_for
from longshore_devcluster.apiserver.resources import Registry, Resource
from longshore_devcluster.apiserver.schema.node import Object

_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_BODY_TYPES = ("application/json", "application/yaml")
_PATCH_TYPES = (
    "application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)  # fmt: skip
_ACTIONS = {"get": "get", "put": "update", "patch": "patch", "post": "create", "delete": "delete"}


def _query(name: str, kind: str, description: str) -> Object:
    schema = {"type": kind, "uniqueItems": True}
    return {"name": name, "in": "query", "description": description, "schema": schema}


_WRITE_PARAMETERS = [
    _query("dryRun", "string", "When it is All, everything is checked and nothing is stored."),
    _query("fieldManager", "string", "The name of whoever makes this change."),
    _query("fieldValidation", "string", "What to do about unknown and duplicate fields: Ignore, Warn or Strict."),
]
_PATCH_PARAMETERS = [*_WRITE_PARAMETERS, _query("force", "boolean", "Take fields from other managers (apply only).")]


class OpenApi:
    """Answers below ``/openapi``; documents are built when asked for and kept until the resources change."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._built_at = -1
        self._documents: dict[str, bytes] = {}
        self._modified_s = int(time.time())

    def answer(self, request: web.Request, path: str) -> web.Response:
        self._refresh()
        if path == "/openapi/v2":
            return _minimal_v2(request)
        if path == "/openapi/v3":
            return self._index(request)
        document = self._document(path.removeprefix("/openapi/v3/"))
        tag = '"' + _digest(document) + '"'
        headers = {"ETag": tag, "Last-Modified": self._modified, "Content-Type": "application/json"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=document, headers=headers)

    def _refresh(self) -> None:
        if self._built_at != self._registry.changes:
            kept = {p: d for p, d in self._documents.items() if not self._is_custom(p)}
            self._documents = kept
            self._built_at = self._registry.changes
            self._modified_s = max(int(time.time()), self._modified_s + 1)  # HTTP dates know seconds only

    @property
    def _modified(self) -> str:
        return formatdate(self._modified_s, usegmt=True)

    def _is_custom(self, path: str) -> bool:
        group = path.split("/")[1]
        return not self._registry.is_builtin_group("" if path.startswith("api/") else group)

    def _paths(self) -> list[str]:
        found = {_document_path(r.group, r.version): None for r in self._registry.all()}
        return list(found)

    def _index(self, request: web.Request) -> web.Response:
        headers = {"Last-Modified": self._modified, "Content-Type": "text/plain; charset=utf-8"}
        if request.headers.get("If-Modified-Since") == self._modified:
            return web.Response(status=304, headers=headers)
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={_digest(self._document(path))}"}
            for path in self._paths()
        }
        return web.Response(body=orjson.dumps({"paths": paths}), headers=headers)

    def _document(self, path: str) -> bytes:
        if path not in self._documents:
            resources = [r for r in self._registry.all() if _document_path(r.group, r.version) == path]
            if not resources:
                raise PlainNotFound(path)
            self._documents[path] = orjson.dumps(_build(resources))
        return self._documents[path]


def _document_path(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _digest(data: bytes) -> str:
    return hashlib.sha512(data).hexdigest().upper()


def _build(resources: list[Resource]) -> Object:
    paths: Object = {}
    for resource in resources:
        paths.update(_resource_paths(resource))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"{VERSION['major']}.{VERSION['minor']}"},
        "paths": paths,
        "components": {"schemas": definitions_for(resources)},
    }


def _resource_paths(resource: Resource) -> Object:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    base = f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    collection = {"get": "list", "post": "create"}
    found: Object = {}
    verbs = {method: _operation(resource, method, action) for method, action in collection.items()
             if action in resource.verbs}  # fmt: skip
    if verbs:
        found[base] = verbs
    item = {method: _operation(resource, method, action) for method, action in _ACTIONS.items()
            if action in resource.verbs and method != "post"}  # fmt: skip
    if item:
        found[f"{base}/{{name}}"] = item
    for sub in resource.subresources:
        found[f"{base}/{{name}}/{sub.name}"] = {
            method: _operation(resource, method, action) for method, action in _ACTIONS.items() if action in sub.verbs
        }
    return found


def _operation(resource: Resource, method: str, action: str) -> Object:
    name = f"{action}{resource.kind}{resource.version.capitalize()}"
    operation: Object = {
        "operationId": name,
        "responses": {"200": {"description": "OK"}, "401": {"description": "Unauthorized"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {
            "group": resource.group, "version": resource.version, "kind": resource.kind,
        },
    }  # fmt: skip
    if method in ("put", "post", "patch"):
        operation["parameters"] = _PATCH_PARAMETERS if method == "patch" else _WRITE_PARAMETERS
        types: tuple[str, ...] = _PATCH_TYPES if method == "patch" else _BODY_TYPES
        if resource.custom and method == "patch":
            types = types[:3]
        operation["requestBody"] = {"content": {media: {"schema": {"type": "object"}} for media in types}}
    return operation


def _minimal_v2(request: web.Request) -> web.Response:
    """Return an OpenAPI v2 document without definitions: clients that read it fall back to what they know."""
    if "protobuf" in request.headers.get("Accept", ""):
        info = _length_delimited(1, b"Kubernetes") + _length_delimited(2, b"v1.36.2")
        body = _length_delimited(1, b"2.0") + _length_delimited(2, info)
        return web.Response(body=body, headers={"Content-Type": _V2_PROTOBUF})
    document = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.2"}, "paths": {}, "definitions": {}}
    return web.Response(body=orjson.dumps(document), headers={"Content-Type": "application/json"})


def _length_delimited(field: int, data: bytes) -> bytes:
    """Encode one protobuf field (lengths below 128 only)."""
    assert len(data) < 128
    return bytes([field << 3 | 2, len(data)]) + data
