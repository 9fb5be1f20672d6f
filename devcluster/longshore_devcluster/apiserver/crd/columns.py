"""Printer columns of custom resources (``additionalPrinterColumns``)."""

from datetime import datetime

import orjson

from longshore_devcluster.apiserver.builtin.printers import NAME
from longshore_devcluster.apiserver.clock import age
from longshore_devcluster.apiserver.crd.jsonpath import find, steps
from longshore_devcluster.apiserver.resources import Column, Printer
from longshore_devcluster.apiserver.schema.node import Json, Object

_AGE = {
    "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
    "description": "Time since the object was created.",
}  # fmt: skip


def _cell(values: list[Json], kind: str, now: datetime) -> Json:
    """Return the value of one cell, or None if there is none or it is not what the type promises."""
    if not values or values[0] is None:
        return None
    value = values[0]
    if kind == "integer":
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "number":
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "date":
        try:
            return age(value, now) if isinstance(value, str) else "<unknown>"
        except ValueError:
            return "<invalid>"
    if len(values) > 1:
        return ",".join(_text(v) for v in values)
    return _text(value)


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def custom_printer(definitions: list[Object] | None) -> Printer:
    """Name, then the wanted columns; Name and Age where none are wanted."""
    wanted = definitions or [_AGE]
    paths = [steps(d["jsonPath"]) for d in wanted]
    columns = tuple(
        Column(
            d["name"],
            d["type"],
            d.get("description") or f"Custom resource definition column (in JSONPath format): {d['jsonPath']}",
            d.get("priority", 0),
            d.get("format", ""),
        )
        for d in wanted
    )

    def cells(obj: Object, now: datetime) -> list[Json]:
        shown = [_cell(list(find(path, obj)), d["type"], now) for d, path in zip(wanted, paths, strict=True)]
        return [obj["metadata"]["name"], *shown]

    return Printer((NAME, *columns), cells)
