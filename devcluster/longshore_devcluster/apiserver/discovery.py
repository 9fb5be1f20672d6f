"""Discovery: what the server serves, in the aggregated and in the older form."""

import hashlib
import re
from collections.abc import Iterable

import orjson
from aiohttp import web

from longshore_devcluster.apiserver.errors import ApiError, PlainNotFound
from longshore_devcluster.apiserver.negotiate import parse_accept
from longshore_devcluster.apiserver.render import respond
from longshore_devcluster.apiserver.resources import Registry, Resource
from longshore_devcluster.apiserver.schema.node import Object

_AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION = {
    "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35", "gitVersion": "v1.36.2+devcluster", "gitCommit": "", "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
}  # fmt: skip


def _wants_aggregated(accept: str) -> bool:
    """Return whether the first clause that we can serve asks for the aggregated form (version v2)."""
    for clause in parse_accept(accept):
        if clause.media not in ("application/json", "*/*"):
            continue
        as_type = clause.parameters.get("as")
        if not as_type:
            return False
        if as_type == "APIGroupDiscoveryList" and clause.parameters.get("v") == "v2":
            return True
    if accept and "as=APIGroupDiscoveryList" in accept:
        available = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        message = f"406: Not Acceptable\n\nAvailable representations: {available}"
        raise ApiError(406, "NotAcceptable", message, {})
    return False


def _by_version(registry: Registry, group: str) -> dict[str, list[Resource]]:
    found: dict[str, list[Resource]] = {}
    for resource in registry.all():
        if resource.group == group:
            found.setdefault(resource.version, []).append(resource)
    return {version: sorted(found[version], key=lambda r: r.plural) for version in _preferred_first(found)}


def _preferred_first(versions: Iterable[str]) -> list[str]:
    """Sort versions as Kubernetes does: stable before beta before alpha, higher before lower."""

    def rank(version: str) -> tuple[int, int, int]:
        match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
        if match is None:
            return (3, 0, 0)
        stage = {"beta": 1, "alpha": 2}.get(match[2] or "", 0)
        return (stage, -int(match[1]), -int(match[3] or 0))

    return sorted(versions, key=lambda version: (rank(version), version))


def _groups(registry: Registry) -> list[str]:
    names = dict.fromkeys(resource.group for resource in registry.all())
    return [name for name in names if name]


def _aggregated_resource(resource: Resource) -> Object:
    def response_kind(group: str, version: str, kind: str) -> Object:
        if resource.custom and not group and not version:
            return {"group": resource.group, "version": resource.version, "kind": kind}
        return {"group": group, "version": version, "kind": kind}

    shown: Object = {
        "resource": resource.plural,
        "responseKind": response_kind("", "", resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": sorted(resource.verbs),
    }
    if resource.short_names:
        shown["shortNames"] = list(resource.short_names)
    if resource.categories:
        shown["categories"] = list(resource.categories)
    if resource.subresources:
        shown["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": response_kind(sub.group, sub.version, sub.kind),
                "verbs": sorted(sub.verbs),
            }
            for sub in resource.subresources
        ]
    return shown


def _aggregated_group(registry: Registry, group: str) -> Object:
    versions = [
        {"version": version, "resources": [_aggregated_resource(r) for r in resources], "freshness": "Current"}
        for version, resources in _by_version(registry, group).items()
    ]
    return {"metadata": {"name": group} if group else {}, "versions": versions}


def _aggregated(registry: Registry, groups: list[str]) -> Object:
    items = [_aggregated_group(registry, group) for group in groups]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _api_group(registry: Registry, group: str) -> Object:
    versions = [{"groupVersion": f"{group}/{v}", "version": v} for v in _by_version(registry, group)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resource_list(group: str, version: str, resources: list[Resource]) -> Object:
    shown: list[Object] = []
    for resource in resources:
        entry: Object = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": sorted(resource.verbs),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        shown.append(entry)
        for sub in resource.subresources:
            sub_entry: Object = {
                "name": f"{resource.plural}/{sub.name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": sub.kind,
                "verbs": sorted(sub.verbs),
            }
            if sub.group or sub.version:
                sub_entry |= {"group": sub.group, "version": sub.version}
            shown.append(sub_entry)
    group_version = f"{group}/{version}" if group else version
    body: Object = {"kind": "APIResourceList", "groupVersion": group_version, "resources": shown}
    return {"kind": "APIResourceList", "apiVersion": "v1", **body} if group else body


class Discovery:
    """Answers ``/api``, ``/apis`` and what is below them."""

    def __init__(self, registry: Registry, address: str) -> None:
        self._registry, self._address = registry, address

    def answer(self, request: web.Request, path: str) -> web.Response:
        """Answer a request for groups and versions; raises PlainNotFound for those that do not exist."""
        parts = [part for part in path.split("/") if part]
        accept = request.headers.get("Accept", "")
        if parts in (["api"], ["apis"]):
            if _wants_aggregated(accept):
                groups = [""] if parts == ["api"] else _groups(self._registry)
                return _tagged(request, _aggregated(self._registry, groups))
            return respond(self._legacy_root(parts[0]))
        group = "" if parts[0] == "api" else parts[1]
        version = parts[1] if parts[0] == "api" else parts[2] if len(parts) > 2 else ""
        versions = _by_version(self._registry, group)
        if not versions or (version and version not in versions):
            raise PlainNotFound(path)
        if not version:
            return respond({"kind": "APIGroup", "apiVersion": "v1", **_api_group(self._registry, group)})
        return respond(_resource_list(group, version, versions[version]))

    def _legacy_root(self, root: str) -> Object:
        if root == "api":
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}]
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
        groups = [_api_group(self._registry, group) for group in _groups(self._registry)]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def _tagged(request: web.Request, body: Object) -> web.Response:
    """Return the aggregated form with its ETag, or 304 where the client has it."""
    tag = '"' + hashlib.sha512(orjson.dumps(body)).hexdigest().upper() + '"'
    headers = {"ETag": tag, "Vary": "Accept"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return respond(body, headers=headers, content_type=_AGGREGATED_TYPE)
