"""Printer columns of further built-in resources; those without any here show their name and age."""

from datetime import datetime

from longshore_devcluster.apiserver.builtin.printers import AGE, NAME, _age, _printer
from longshore_devcluster.apiserver.clock import age
from longshore_devcluster.apiserver.resources import Column, Printer
from longshore_devcluster.apiserver.schema.node import Json, Object


def _state(obj: Object) -> str:
    deleting = obj["metadata"].get("deletionTimestamp")
    return "Terminating" if deleting else str(obj.get("status", {}).get("phase", ""))


NAMESPACES = _printer("Status", lambda obj, now: [obj.get("status", {}).get("phase", "")])
CONFIG_MAPS = _printer("Data#", lambda obj, now: [len(obj.get("data") or {}) + len(obj.get("binaryData") or {})])
SECRETS = _printer("Type Data", lambda obj, now: [obj.get("type", ""), len(obj.get("data") or {})])
LEASES = _printer("Holder", lambda obj, now: [obj.get("spec", {}).get("holderIdentity") or ""])
_MODES = {
    "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP",
}  # fmt: skip


def _modes(modes: list[str] | None) -> str:
    return ",".join(_MODES.get(m, m) for m in modes or ())


def _claim_row(obj: Object, now: datetime) -> list[Json]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    bound = spec.get("volumeName")
    return [
        _state(obj),
        bound or "",
        status.get("capacity", {}).get("storage", "") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or "<unset>",
        spec.get("volumeMode") or "<unset>",
    ]


CLAIMS = _printer("Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass", _claim_row, ("VolumeMode",))
_EVENT_COLUMNS = (
    Column("Last Seen"), Column("Type"), Column("Reason"), Column("Object"), Column("Subobject", priority=1),
    Column("Source", priority=1), Column("Message"), Column("First Seen", priority=1),
    Column("Count", priority=1), Column("Name", format="name", priority=1),
)  # fmt: skip


def _event_row(event: Object, now: datetime) -> list[Json]:
    """Return cells of an event in its stored (core/v1) form."""
    about, source, series = event.get("involvedObject", {}), event.get("source", {}), event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    if source.get("component"):
        shown_source = ", ".join(filter(None, [source.get("component"), source.get("host")]))
    else:
        reporter = [event.get("reportingComponent"), event.get("reportingInstance")]
        shown_source = ", ".join(filter(None, reporter))
    return [
        age(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        shown_source,
        event.get("message", "").strip(),
        age(first, now),
        series.get("count") or event.get("count") or 1,
        event["metadata"]["name"],
    ]


EVENTS = Printer(_EVENT_COLUMNS, _event_row)
SCALES = Printer(
    (NAME, Column("Desired", "integer"), Column("Available", "integer"), Column(AGE.name, "date")),
    lambda obj, now: [
        obj["metadata"]["name"],
        obj.get("spec", {}).get("replicas", 0),
        obj.get("status", {}).get("replicas", 0),
        _age(obj, now),
    ],
)
