"""Server-side apply: merging a configuration into an object, field by field, by owner.

The behaviour follows Kubernetes' structured merge: a manager owns what it applied; what it no longer lists goes,
unless someone else owns it; a field that another manager holds with another value is a conflict.
"""

from dataclasses import dataclass

from longshore_devcluster.apiserver import fieldsets, ownership
from longshore_devcluster.apiserver.errors import ApiError, internal
from longshore_devcluster.apiserver.fieldsets import Path, Paths
from longshore_devcluster.apiserver.ownership import Holding, Owner, Owners
from longshore_devcluster.apiserver.schema.node import Json, Object, Schema
from longshore_devcluster.apiserver.store import copied


@dataclass(frozen=True, slots=True)
class Applied:
    obj: Object
    owners: Owners


def apply(live: Object, config: Object, schema: Schema, owner: Owner, *, force: bool) -> Applied:
    """Return the object and its owners after ``owner`` applies ``config``. Raises 409 with the conflicts."""
    owners = ownership.entries_of(live)
    base = copied(ownership.without_entries(live))
    wanted = ownership.owned(frozenset(fieldsets.of_applied(config, schema)))
    previous = owners.get(owner, Holding(frozenset(), "")).paths
    others = {other: holding for other, holding in owners.items() if other != owner}
    result = _merge(base, config, schema)
    result = _prune(result, schema, _with_parents(previous) - _with_parents(wanted), others)
    comparison = fieldsets.compare(base, result, schema)
    taken = ownership.owned(comparison.added | comparison.modified)
    conflicts = [(other.shown(), path) for other, holding in others.items() for path in sorted(holding.paths & taken)]
    if conflicts and not force:
        raise _conflict_error(conflicts)
    lost = frozenset(comparison.removed) | taken
    kept = {other: Holding(h.paths - lost, h.time) for other, h in others.items()}
    return Applied(result, {**kept, owner: Holding(wanted, "")})


# --- merging


def _merge(live: Json, config: Json, schema: Schema) -> Json:
    if fieldsets.is_granular_map(config, schema):
        result = dict(live) if isinstance(live, dict) else {}
        for name, value in config.items():
            if value is None:
                continue
            result[name] = _merge(result.get(name), value, fieldsets.node_of(schema, name))
        return result
    if fieldsets.is_granular_list(schema) and isinstance(config, list):
        return _merge_list(live if isinstance(live, list) else [], config, schema)
    return config


def _merge_list(live: list[Json], config: list[Json], schema: Schema) -> list[Json]:
    """Merge lists: applied items come in their order; items that only exist live keep their place relative to them."""
    assert schema.item is not None
    live_by = {fieldsets.item_element(item, schema): item for item in live}
    wanted: dict[str | None, Json] = {}
    for item in config:
        element = fieldsets.item_element(item, schema)
        wanted[element] = _merge(live_by.get(element), item, schema.item)
    result: list[Json] = []
    pending = list(wanted)
    for element, item in live_by.items():
        if element not in wanted:
            result.append(item)
            continue
        while pending and element in pending:
            first = pending.pop(0)
            result.append(wanted[first])
            if first == element:
                break
    return [*result, *(wanted[element] for element in pending)]


# --- removing what is no longer applied


def _prune(obj: Object, schema: Schema, dropped: Paths, others: Owners) -> Object:
    """Return `obj` without the ``dropped`` fields that nobody else owns."""
    held = _with_parents(frozenset().union(*(holding.paths for holding in others.values())))
    gone = ownership.owned(dropped - held)
    return _remove(copied(obj), schema, (), gone) if gone else obj


def _with_parents(paths: Paths) -> Paths:
    return frozenset(path[:length] for path in paths for length in range(1, len(path) + 1))


def _remove(value: Json, schema: Schema, path: Path, gone: Paths) -> Json:
    parts = fieldsets.members(value, schema)
    if parts is None:
        return value
    kept: list[tuple[str, Json]] = []
    for element, (member, node) in parts.items():
        child = (*path, element)
        if child not in gone:
            kept.append((element, _remove(member, node, child, gone)))
    if isinstance(value, list):
        return [member for _, member in kept]
    return {element[2:]: member for element, member in kept}


# --- conflicts


def _conflict_error(conflicts: list[tuple[str, Path]]) -> ApiError:
    by_manager: dict[str, list[str]] = {}
    for manager, path in sorted(conflicts):
        by_manager.setdefault(manager, []).append(fieldsets.show(path))
    if len(conflicts) == 1:
        manager, shown = next(iter(by_manager.items()))
        listed = f"conflict with {manager}: {shown[0]}"
    else:
        listed = "\n".join(
            line for manager, paths in by_manager.items() for line in (f"conflicts with {manager}:", *_bullets(paths))
        )
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, paths in by_manager.items()
        for path in paths
    ]
    plural = "" if len(conflicts) == 1 else "s"
    message = f"Apply failed with {len(conflicts)} conflict{plural}: {listed}"
    return ApiError(409, "Conflict", message, {"causes": causes})


def _bullets(paths: list[str]) -> list[str]:
    return [f"- {path}" for path in paths]


# --- the schema's say


_EXPECTED = {
    "string": (str, "string"), "time": (str, "string"), "microtime": (str, "string"), "bytes": (str, "string"),
    "bool": (bool, "boolean"), "int": ((int, float), "numeric (int or float)"),
    "number": ((int, float), "numeric (int or float)"), "map": (dict, "map"), "object": (dict, "map"),
    "list": (list, "list"),
}  # fmt: skip


def check_typed(config: Object, schema: Schema, namespace: str, name: str, group_version: str, kind: str) -> None:
    """Check a configuration against its schema; raises the 500 of one that does not fit."""
    complaints = _complaints(config, schema, ())
    if complaints:
        listed = complaints[0] if len(complaints) == 1 else "errors:\n  " + "\n  ".join(complaints)
        where = f"{namespace}/{name}" if namespace else f"/{name}"
        raise internal(f"failed to create typed patch object ({where}; {group_version}, Kind={kind}): {listed}")


def _complaints(value: Json, schema: Schema, path: Path) -> list[str]:
    if value is None or schema.kind in ("any", "intorstring", "quantity"):
        return []
    types, expected = _EXPECTED[schema.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and schema.kind != "bool"):  # type: ignore[arg-type]
        return [f"{fieldsets.show(path)}: expected {expected}, got {_kind(value)}"]
    found = []
    if isinstance(value, dict):
        for name, member in value.items():
            node = schema.child(name)
            if node is None:
                known = schema.preserve_unknown or (not path and name in ("apiVersion", "kind", "metadata"))
                if not known:
                    found.append(f"{fieldsets.show((*path, 'f:' + name))}: field not declared in schema")
                continue
            found += _complaints(member, node, (*path, f"f:{name}"))
    elif isinstance(value, list) and schema.item is not None:
        for index, item in enumerate(value):
            element = fieldsets.item_element(item, schema) if fieldsets.is_granular_list(schema) else None
            found += _complaints(item, schema.item, (*path, element or f"v:{index}"))
    return found


def _kind(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", dict: "map", list: "list", int: "int", float: "float"}.get(type(value), "null")
