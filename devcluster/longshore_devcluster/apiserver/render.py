"""From objects to answers: JSON or YAML, whole objects, metadata only, or Tables."""

from collections.abc import Mapping
from datetime import datetime

import orjson
import yaml
from aiohttp import web

from longshore_devcluster.apiserver.lists import Page
from longshore_devcluster.apiserver.negotiate import Representation
from longshore_devcluster.apiserver.resources import Printer, Resource
from longshore_devcluster.apiserver.schema.node import Json, Object
from longshore_devcluster.apiserver.store import copied
from longshore_devcluster.apiserver.tables import partial, row, table

JSON_TYPE, YAML_TYPE = "application/json", "application/yaml"


def wants_indent(query: Mapping[str, str], user_agent: str) -> bool:
    """Return whether the client gets indented JSON: people with curl or a browser do, libraries get one line."""
    if "pretty" in query:
        return query["pretty"].lower() not in ("false", "0")
    return user_agent.startswith(("curl/", "Wget/", "Mozilla/"))


def respond(
    body: Json,
    *,
    status: int = 200,
    as_yaml: bool = False,
    indent: bool = False,
    headers: Mapping[str, str] | None = None,
    content_type: str = "",
) -> web.Response:
    if as_yaml:
        # A copy has no member twice, for which YAML would have anchors.
        data = yaml.safe_dump(copied(body), default_flow_style=False).encode()
    else:
        data = orjson.dumps(body, option=orjson.OPT_INDENT_2 if indent else 0)
    all_headers = {"Content-Type": content_type or (YAML_TYPE if as_yaml else JSON_TYPE), **(headers or {})}
    return web.Response(body=data, status=status, headers={"Cache-Control": "no-cache, private", **all_headers})


def shown_object(
    resource: Resource, obj: Object, wanted: Representation, query: Mapping[str, str], now: datetime
) -> Object:
    """Return one object in the form that the client wants."""
    if wanted.transform == "Table":
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        return _table(resource.printer, resource, [obj], metadata, wanted, query, now)
    if wanted.transform.startswith("PartialObjectMetadata"):
        return partial(obj, wanted.transform_version)
    return obj


def shown_list(
    resource: Resource, page: Page, wanted: Representation, query: Mapping[str, str], now: datetime
) -> Object:
    """Return a list as the client wants it. Items of built-in kinds do not repeat their kind."""
    if wanted.transform == "Table":
        return _table(resource.printer, resource, page.items, page.metadata, wanted, query, now)
    if wanted.transform.startswith("PartialObjectMetadata"):
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": f"meta.k8s.io/{wanted.transform_version}",
            "metadata": page.metadata,
            # Null for an empty list, as a real server writes it.
            "items": [partial(item, wanted.transform_version) for item in page.items] or None,
        }
    items = page.items
    if not resource.custom:
        items = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in items]
    return {
        "kind": resource.list_kind or f"{resource.kind}List",
        "apiVersion": resource.group_version,
        "metadata": page.metadata,
        "items": items,
    }


def _table(
    printer: Printer,
    resource: Resource,
    objects: list[Object],
    metadata: Object,
    wanted: Representation,
    query: Mapping[str, str],
    now: datetime,
    *,
    with_columns: bool = True,
) -> Object:
    include = query.get("includeObject", "Metadata")
    version = wanted.transform_version
    rows = [row(printer, obj, now, include, version) for obj in objects]
    return table(printer, rows, metadata, version, with_columns=with_columns)


class WatchEncoder:
    """Watch events as lines; the first Table of a stream carries the column definitions."""

    def __init__(self, resource: Resource, wanted: Representation, query: Mapping[str, str]) -> None:
        self._resource, self._wanted, self._query = resource, wanted, query
        self._with_columns = True

    def line(self, kind: str, obj: Object, now: datetime) -> bytes:
        return orjson.dumps({"type": kind, "object": self._object(kind, obj, now)}) + b"\n"

    def _object(self, kind: str, obj: Object, now: datetime) -> Object:
        wanted = self._wanted
        if kind == "ERROR" or not wanted.transform:
            return obj
        if wanted.transform == "Table":
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            with_columns, self._with_columns = self._with_columns, False
            if kind == "BOOKMARK":
                rows = [{"cells": [], "object": partial(obj, wanted.transform_version)}]
                return table(
                    self._resource.printer, rows, metadata, wanted.transform_version, with_columns=with_columns
                )
            return _table(
                self._resource.printer, self._resource, [obj], metadata, wanted, self._query, now,
                with_columns=with_columns,
            )  # fmt: skip
        return partial(obj, wanted.transform_version)
