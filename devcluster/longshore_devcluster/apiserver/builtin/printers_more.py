"""Printer columns of the built-in resources that have few."""

from collections.abc import Callable
from datetime import datetime

from longshore_devcluster.apiserver.builtin.printers import AGE, NAME, _age, _printer, selector_text
from longshore_devcluster.apiserver.clock import age
from longshore_devcluster.apiserver.resources import Column, Printer
from longshore_devcluster.apiserver.schema.node import Json, Object


def _path(path: str, default: Json = "") -> Callable[[Object], Json]:
    keys = path.split(".")

    def get(obj: Object) -> Json:
        node: Json = obj
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return default if node is None else node

    return get


def _paths(*getters: Callable[[Object], Json]) -> Callable[[Object, datetime], list[Json]]:
    return lambda obj, now: [getter(obj) for getter in getters]


def _size(*fields: str) -> Callable[[Object], Json]:
    return lambda obj: sum(len(obj.get(name) or {}) for name in fields)


def _state(obj: Object) -> str:
    deleting = obj["metadata"].get("deletionTimestamp")
    return "Terminating" if deleting else str(obj.get("status", {}).get("phase", ""))


NAMESPACES = _printer("Status", _paths(_path("status.phase")))
CONFIG_MAPS = _printer("Data#", _paths(_size("data", "binaryData")))
SECRETS = _printer("Type Data", _paths(_path("type"), _size("data")))
LEASES = _printer("Holder", _paths(_path("spec.holderIdentity")))
PRIORITY_CLASSES = _printer(
    "Value# Global-Default PreemptionPolicy",
    _paths(_path("value", 0), _path("globalDefault", False), _path("preemptionPolicy")),
)
STORAGE_CLASSES = _printer(
    "Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion",
    _paths(
        _path("provisioner"),
        _path("reclaimPolicy", "Delete"),
        _path("volumeBindingMode", "Immediate"),
        _path("allowVolumeExpansion", False),
    ),
)
NETWORK_POLICIES = _printer("Pod-Selector", lambda obj, now: [selector_text(obj.get("spec", {}).get("podSelector"))])
DISRUPTION_BUDGETS = _printer(
    "Min_Available Max_Unavailable Allowed_Disruptions#",
    lambda obj, now: [
        str(_path("spec.minAvailable", "N/A")(obj)),
        str(_path("spec.maxUnavailable", "N/A")(obj)),
        _path("status.disruptionsAllowed", 0)(obj),
    ],
)


def _role_ref(obj: Object) -> str:
    return f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"


def _subjects(obj: Object, kind: str) -> str:
    chosen = [s for s in obj.get("subjects") or () if s["kind"] == kind]
    if kind == "ServiceAccount":
        return ", ".join(f"{s.get('namespace', '')}/{s['name']}" for s in chosen)
    return ", ".join(s["name"] for s in chosen)


BINDINGS = _printer(
    "Role",
    lambda obj, now: [_role_ref(obj), *(_subjects(obj, k) for k in ("User", "Group", "ServiceAccount"))],
    ("Users", "Groups", "ServiceAccounts"),
)
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


def _volume_row(obj: Object, now: datetime) -> list[Json]:
    spec = obj.get("spec", {})
    claim = spec.get("claimRef")
    return [
        spec.get("capacity", {}).get("storage", ""),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        _state(obj),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or "<unset>",
        obj.get("status", {}).get("reason", ""),
        spec.get("volumeMode") or "<unset>",
    ]


VOLUMES = _printer(
    "Capacity Access_Modes Reclaim_Policy Status Claim StorageClass VolumeAttributesClass Reason",
    _volume_row,
    ("VolumeMode",),
)


def _endpoints_row(obj: Object, now: datetime) -> list[Json]:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return [(",".join(found[:3]) + more) or "<none>"]


ENDPOINTS = _printer("Endpoints", _endpoints_row)


def _slice_row(obj: Object, now: datetime) -> list[Json]:
    ports = [str(p.get("port", "*")) for p in obj.get("ports") or ()]
    addresses = [a for e in obj.get("endpoints") or () for a in e.get("addresses") or ()]
    shown = [obj.get("addressType", ""), ",".join(ports) or "<unset>", ",".join(addresses) or "<unset>"]
    return [*shown]


ENDPOINT_SLICES = _printer("AddressType Ports Endpoints", _slice_row)

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
