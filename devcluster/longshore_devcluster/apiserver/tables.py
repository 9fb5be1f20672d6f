"""Tables: the rows that ``kubectl get`` prints."""

from collections.abc import Iterable
from datetime import datetime

from longshore_devcluster.apiserver.resources import Printer
from longshore_devcluster.apiserver.schema.node import Object


def column_definitions(printer: Printer) -> list[Object]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in printer.columns
    ]


def partial(obj: Object, version: str = "v1") -> Object:
    """Return the object's metadata alone."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def row(printer: Printer, shown: Object, now: datetime, include: str, version: str) -> Object:
    """Return the row of an object, which is embedded as ``include`` (None, Metadata, Object) says."""
    cells = printer.cells(shown, now)
    if include == "None":
        return {"cells": cells, "object": None}
    return {"cells": cells, "object": shown if include == "Object" else partial(shown, version)}


def table(
    printer: Printer, rows: Iterable[Object], metadata: Object, version: str = "v1", *, with_columns: bool = True
) -> Object:
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": column_definitions(printer) if with_columns else None,
        "rows": list(rows),
    }
