"""Who owns which field: upkeep of ``metadata.managedFields``."""

from dataclasses import dataclass
from datetime import datetime

from longshore_devcluster.apiserver import fieldsets
from longshore_devcluster.apiserver.fieldsets import Path, Paths
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_kube.times import rfc3339

_UNOWNED_METADATA = (
    "name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "resourceVersion",
    "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "clusterName",
)  # fmt: skip
_UNOWNED: frozenset[Path] = frozenset(
    {(), ("f:apiVersion",), ("f:kind",), ("f:metadata",)} | {("f:metadata", f"f:{n}") for n in _UNOWNED_METADATA}
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The identity of one entry."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""

    def shown(self) -> str:
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


@dataclass(frozen=True, slots=True)
class Holding:
    paths: Paths
    time: str


Owners = dict[Owner, Holding]


def owned(paths: set[Path] | Paths) -> Paths:
    """Return the paths without the fields that nobody owns."""
    return frozenset(paths) - _UNOWNED


def parse(entries: list[Object] | None) -> Owners:
    owners: Owners = {}
    for entry in entries or ():
        owner = Owner(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        )
        owners[owner] = Holding(fieldsets.decode(entry.get("fieldsV1") or {}), entry.get("time", ""))
    return owners


def entries_of(obj: Object) -> Owners:
    return parse(obj["metadata"].get("managedFields"))


def without_entries(obj: Object) -> Object:
    """Return an object without its entries; its other members stay those of `obj`."""
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name != "managedFields"}}


def same_owners(one: Owners, other: Owners) -> bool:
    """Return whether the same managers hold the same fields (whenever they took them)."""
    return {o: h.paths for o, h in one.items()} == {o: h.paths for o, h in other.items()}


def store(obj: Object, owners: Owners, before: Owners, now: datetime) -> None:
    """Write the entries into the object; those that changed against ``before`` get the present time."""
    entries = []
    for owner, holding in owners.items():
        if not holding.paths:
            continue
        same = owner in before and before[owner].paths == holding.paths
        time = before[owner].time if same else holding.time or rfc3339(now)
        entry: Object = {
            "apiVersion": owner.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": fieldsets.encode(holding.paths),
            "manager": owner.manager,
            "operation": owner.operation,
        }
        if owner.subresource:
            entry["subresource"] = owner.subresource
        entries.append({**entry, "time": time})
    entries.sort(key=lambda e: (e["operation"], e["time"], e["manager"], e["apiVersion"], e.get("subresource", "")))
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def after_change(owners: Owners, manager: Owner, comparison: fieldsets.Comparison) -> Owners:
    """Give the manager what it added or changed, from everyone; what is gone belongs to nobody."""
    taken = owned(comparison.added | comparison.modified)
    lost = frozenset(comparison.removed)
    changed = {}
    for owner, holding in owners.items():
        if owner != manager:
            kept = holding.paths - taken - lost
            changed[owner] = holding if kept == holding.paths else Holding(kept, holding.time)
    mine = owners.get(manager, Holding(frozenset(), "")).paths
    changed[manager] = Holding((mine - lost) | taken, "")
    return changed


def on_create(resource: Resource, obj: Object, owners: Owners | None, manager: str, now: datetime) -> None:
    """Return the entries of a new object: the creator's, or those that an apply has computed."""
    obj["metadata"].pop("managedFields", None)
    if owners is None:
        ignored = ("status",) if resource.has_status else ()
        seen = {name: value for name, value in obj.items() if name not in ignored}
        owner = Owner(manager, "Update", resource.group_version)
        owners = after_change({}, owner, fieldsets.compare({}, seen, resource.schema))
    store(obj, owners, {}, now)


def on_update(
    resource: Resource, old: Object, new: Object, before: Owners, claimed: Owners, owner: Owner, now: datetime
) -> None:
    """Return entries after an update.

    ``claimed`` are those the writer left or sent (kubectl rewrites them to migrate).
    """
    comparison = fieldsets.compare(old, new, resource.schema)
    if comparison.added or comparison.removed or comparison.modified:
        claimed = after_change(claimed, owner, comparison)
    store(new, claimed, before, now)
