"""Lists: selection, pages and snapshots."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from longshore_devcluster.apiserver.errors import bad_request, expired, too_large_version
from longshore_devcluster.apiserver.request import ListOptions
from longshore_devcluster.apiserver.resources import Resource
from longshore_devcluster.apiserver.schema.node import Object
from longshore_devcluster.apiserver.selectors import matches_fields, matches_labels, parse_fields, parse_labels
from longshore_devcluster.apiserver.store import Record, Store, TooOld
from longshore_devcluster.apiserver.write_rules import presented

_TOO_OLD_PAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)
Match = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """Objects (in the resource's form) and the list's metadata."""

    items: list[Object]
    metadata: Object


def matcher(resource: Resource, options: ListOptions, name: str = "") -> Match:
    """Return the test of the selectors. Raises 400 for selectors that cannot be read."""
    labels = parse_labels(options.label_selector)
    fields = parse_fields(options.field_selector, resource.selectable, custom=resource.custom is not None)

    def matches(obj: Object) -> bool:
        return (
            (not name or obj["metadata"]["name"] == name)
            and matches_labels(labels, obj)
            and matches_fields(fields, resource.selectable, obj)
        )

    return matches


def parse_version(text: str) -> int:
    """Return a resourceVersion parameter; 0 where there is none. Raises ValueError."""
    return int(text) if text else 0


def list_page(store: Store, resource: Resource, namespace: str, options: ListOptions) -> Page:
    """Return one page of a list. Raises 400, 410 or 504."""
    matches = matcher(resource, options)
    version, start = store.version, ""
    records: list[Record]
    if options.continue_token:
        asked, start = _decode_token(options.continue_token)
        if asked == -1:
            records = store.items(resource.storage, namespace)
        else:
            version = asked
            records = _snapshot(store, resource, namespace, asked, start)
    else:
        asked = _asked_version(options)
        if asked > store.version:
            raise too_large_version(asked, store.version)
        if options.version_match == "Exact":
            version = asked
            records = _snapshot(store, resource, namespace, asked, None)
        else:
            records = store.items(resource.storage, namespace)
    if start:
        records = [record for record in records if _position(record) >= start]
    chosen = [record for record in records if matches(record.obj)]
    metadata: Object = {"resourceVersion": str(version)}
    if 0 < options.limit < len(chosen):
        following = chosen[options.limit]
        metadata["continue"] = _encode_token(version, _position(following))
        if not options.label_selector and not options.field_selector:
            metadata["remainingItemCount"] = len(chosen) - options.limit
        chosen = chosen[: options.limit]
    return Page([presented(resource, record) for record in chosen], metadata)


def _asked_version(options: ListOptions) -> int:
    try:
        return parse_version(options.resource_version)
    except ValueError:
        text = options.resource_version
        why = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"resourceVersion: {why}") from None


def _position(record: Record) -> str:
    return f"{record.key.namespace}/{record.key.name}"


def _snapshot(store: Store, resource: Resource, namespace: str, version: int, start: str | None) -> list[Record]:
    try:
        return store.items_at(resource.storage, namespace, version)
    except TooOld:
        if start is None:
            raise expired("The resourceVersion for the provided list is too old.") from None
        raise expired(_TOO_OLD_PAGE, metadata={"continue": _encode_token(-1, start)}) from None


def _encode_token(version: int, start: str) -> str:
    token = orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": start})
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def _decode_token(text: str) -> tuple[int, str]:
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        token = orjson.loads(decoded)
        return int(token["rv"]), str(token["start"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise bad_request(
            "invalid continue token: continue key is not valid: invalid character 'i' looking for beginning of value"
        ) from None
