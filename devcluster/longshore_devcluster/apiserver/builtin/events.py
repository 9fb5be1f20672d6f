"""events.k8s.io events: another view of the events that core/v1 stores."""

from collections.abc import Callable

from longshore_devcluster.apiserver.errors import FieldError, field_invalid, field_required
from longshore_devcluster.apiserver.resources import Printer, Resource, by_name
from longshore_devcluster.apiserver.schema.builtin import builtin_types
from longshore_devcluster.apiserver.schema.node import Object

_CORE_NAME = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}


def _renamer(names: dict[str, str], api_version: str) -> Callable[[Object], None]:
    def rename(obj: Object) -> None:
        for old, new in names.items():
            if old in obj:
                obj[new] = obj.pop(old)
        obj["apiVersion"] = api_version

    return rename


def _validate_new(event: Object, old: Object | None) -> list[FieldError]:
    """Return the rules of the newer API, on the stored form."""
    errors = []
    if old is None:
        if not event.get("eventTime"):
            errors.append(field_required("eventTime"))
        if event.get("type", "") not in ("Normal", "Warning"):
            errors.append(field_invalid("type", event.get("type", ""), "has invalid value: "))
        if event.get("eventTime"):
            errors += [
                field_required(shown)
                for shown, name in (
                    ("reportingController", "reportingComponent"),
                    ("reportingInstance", "reportingInstance"),
                    ("action", "action"),
                )
                if not event.get(name)
            ]
    return errors


def events_resource(printer: Printer, select: str) -> Resource:
    def getter(path: str) -> Callable[[Object], str]:
        keys = path.replace("regarding.", "involvedObject.").split(".")

        def get(obj: Object) -> str:
            node: object = obj
            for key in keys:
                node = node.get(key) if isinstance(node, dict) else None
            return "" if node is None else str(node)

        return get

    newer = [path.replace("involvedObject.", "regarding.") for path in select.split()]
    return Resource(
        group="events.k8s.io",
        version="v1",
        kind="Event",
        plural="events",
        singular="event",
        namespaced=True,
        schema=builtin_types()["Event"],
        printer=printer,
        list_kind="EventList",
        short_names=("ev",),
        store_as="events",
        selectable={**by_name(True), **{path: getter(path) for path in newer}},
        validate=_validate_new,
        to_storage=_renamer(_CORE_NAME, "v1"),
        from_storage=_renamer({new: old for old, new in _CORE_NAME.items()}, "events.k8s.io/v1"),
    )
