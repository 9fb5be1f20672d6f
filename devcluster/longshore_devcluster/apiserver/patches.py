"""Patches: JSON patch, merge patch and strategic merge patch."""

from collections.abc import Callable

import jsonpatch
import jsonpointer
import orjson

from longshore_devcluster.apiserver.errors import bad_request, rejected
from longshore_devcluster.apiserver.schema.node import ANY, Json, Object, Schema
from longshore_devcluster.apiserver.store import copied

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

Change = Callable[[Object], Object]


def patch_change(media: str, body: bytes, schema: Schema) -> Change:
    """Return the change that a patch of one of the three kinds stands for. Raises 400 for a body it cannot read."""
    try:
        patch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request("error decoding patch: unexpected end of JSON input") from error
    if media == JSON_PATCH:
        return _json_patch(patch)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal array into Go value of type map[string]any")
    if media == MERGE_PATCH:
        return lambda obj: merged(obj, patch)
    return lambda obj: strategic(obj, patch, schema)


def _json_patch(patch: Json) -> Change:
    if not isinstance(patch, list):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        )

    def change(obj: Object) -> Object:
        try:
            changed: Object = jsonpatch.apply_patch(obj, patch)
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError) as error:
            raise rejected() from error
        if not isinstance(changed, dict):
            raise rejected()
        return changed

    return change


def merged(target: Json, patch: Json) -> Json:
    """Merge a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def strategic(target: Object, patch: Object, schema: Schema) -> Object:
    """Merge a strategic merge patch: lists merge by the keys that the type table gives."""
    return _strategic(copied(target), patch, schema)


_DIRECTIVES = ("$patch", "$retainKeys")


def _strategic(target: Object, patch: Object, schema: Schema) -> Object:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target)
    if isinstance(retained := patch.get("$retainKeys"), list):
        result = {name: value for name, value in result.items() if name in retained}
    for name, value in patch.items():
        if name in _DIRECTIVES or _orders_patched_list(name, patch):
            continue
        if name.startswith("$setElementOrder/"):
            field = name.split("/", 1)[1]
            if field in result:
                result[field] = _ordered(result[field], value, result[field], schema.child(field) or ANY)
            continue
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.split("/", 1)[1]
            result[field] = [item for item in result.get(field) or () if item not in value]
        elif value is None:
            result.pop(name, None)
        else:
            order = patch.get(f"$setElementOrder/{name}")
            result[name] = _member(result.get(name), value, schema.child(name) or ANY, order)
    return result


def _orders_patched_list(name: str, patch: Object) -> bool:
    """Return whether the patch also changes the list that this order is for: both are applied together."""
    return name.startswith("$setElementOrder/") and patch.get(name.split("/", 1)[1]) is not None


def _member(target: Json, value: Json, schema: Schema, order: list[Json] | None) -> Json:
    if isinstance(value, dict):
        return _strategic(target if isinstance(target, dict) else {}, value, schema)
    if isinstance(value, list) and schema.kind == "list" and schema.merge:
        present = target if isinstance(target, list) else []
        return _ordered(_merge_lists(present, value, schema), order or value, present, schema)
    return _plain(value)


def _plain(value: Json) -> Json:
    """Return a value without patch directives."""
    if isinstance(value, list):
        return [
            _plain(item)
            for item in value
            if not (isinstance(item, dict) and item.get("$patch") in ("replace", "delete"))
        ]
    return value


def _merge_lists(target: list[Json], patch: list[Json], schema: Schema) -> list[Json]:
    key = schema.merge_key
    if key is None:
        return [*target, *(item for item in patch if item not in target)]
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return _plain(patch)  # type: ignore[no-any-return]
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {orjson.dumps(item).decode()} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != item[key]]
        elif at is None:
            result.append(_strategic({}, item, schema.item or ANY))
        else:
            result[at] = _strategic(result[at], item, schema.item or ANY)
    return result


def _ordered(items: list[Json], order: list[Json], before: list[Json], schema: Schema) -> list[Json]:
    """Sort items that ``order`` names; the others go before the first of those that stood behind them."""

    def identity(item: Json) -> bytes:
        key = schema.merge_key
        return orjson.dumps(item.get(key) if key and isinstance(item, dict) else item, option=orjson.OPT_SORT_KEYS)

    wanted = {identity(item): place for place, item in enumerate(order)}
    stood = {identity(item): place for place, item in enumerate(before)}
    result = sorted((i for i in items if identity(i) in wanted), key=lambda i: wanted[identity(i)])
    start = 0
    for item in (i for i in items if identity(i) not in wanted):
        place = stood.get(identity(item), len(stood))
        while start < len(result) and not stood.get(identity(result[start]), -1) > place:
            start += 1
        result.insert(start, item)
        start += 1
    return result
