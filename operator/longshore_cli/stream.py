"""Objects of the API server as they change: list, watch, resume, and list again where resuming is impossible."""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError, ProtocolError

from longshore_cli.client import Json, Kube, lines_of
from longshore_cli.explained import explain
from longshore_cli.plain import plain_json

Change = tuple[str, Json]
"""ADDED, MODIFIED or DELETED, and the object."""

WATCH_S: Final = 60
"""The server ends a watch after so long, which also shows that it lives."""
GRACE_S: Final = 60.0
"""So long an API server may be away."""
BACKOFF_S: Final = 1.0
GONE: Final = 410
_OF_OBJECTS: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


class _Expired(Exception):
    """The version to resume from is no longer known."""


def watch(kube: Kube, path: str, field_selector: str, *, timeout_s: float = math.inf,
          clock: Callable[[], float] = time.monotonic,
          back_off: Callable[[float], None] = time.sleep) -> Iterator[Change]:  # fmt: skip
    """First ADDED for each object that exists, then every change, until `timeout_s` is over.

    What vanished while the watch was broken is told as DELETED, with its last known object.

    Raises:
        CliError: the API server was away for longer than GRACE_S.
        ApiException: the server refused the watch.
    """
    known: dict[str, Json] = {}
    version = ""
    deadline_s = clock() + timeout_s
    last_contact_s = clock()
    while (left_s := deadline_s - clock()) > 0:
        try:
            if version:
                changes = _changes(kube, path, field_selector, version, max(1, int(min(WATCH_S, left_s))))
            else:
                changes = _relist(kube, path, field_selector, known)
            for kind, item in changes:
                last_contact_s = clock()
                version = item["metadata"]["resourceVersion"]
                if kind in _OF_OBJECTS:
                    _remember(known, kind, item)
                    yield kind, item
            last_contact_s = clock()
        except _Expired:
            version = ""
        except HTTPError as error:
            if clock() - last_contact_s > GRACE_S:
                raise explain(error) from error
            back_off(BACKOFF_S)
        except ApiException as error:
            if error.status < 500 or clock() - last_contact_s > GRACE_S:
                raise
            back_off(BACKOFF_S)


def _relist(kube: Kube, path: str, field_selector: str, known: dict[str, Json]) -> Iterator[Change]:
    """Changes from `known` to what exists now; the last one carries the version of the list."""
    answer = kube.request("GET", path, query={"fieldSelector": field_selector})
    found = {item["metadata"]["uid"]: item for item in answer.get("items") or []}
    gone = [("DELETED", item) for uid, item in known.items() if uid not in found]
    here = [("MODIFIED" if uid in known else "ADDED", item) for uid, item in found.items()]
    yield from gone + here
    yield "BOOKMARK", answer


def _changes(kube: Kube, path: str, field_selector: str, version: str, timeout_s: int) -> Iterator[Change]:
    query = {
        "watch": "true",
        "fieldSelector": field_selector,
        "resourceVersion": version,
        "timeoutSeconds": str(timeout_s),
        "allowWatchBookmarks": "true",
    }
    try:
        response = kube.open("GET", path, query=query, read_timeout_s=timeout_s + GRACE_S)
    except ApiException as error:
        if error.status == GONE:
            raise _Expired from error
        raise
    for line in lines_of(response):
        kind, item = _change(line)
        if kind == "ERROR":
            if item.get("code") == GONE:
                raise _Expired
            raise ApiException(status=item.get("code", 500), reason=item.get("reason"), body=json.dumps(item))
        yield kind, item


def _change(line: str) -> Change:
    """A line of a watch; raises ProtocolError, as for a connection that broke off, for what is none."""
    try:
        event = plain_json(json.loads(line))
        kind, item = str(event["type"]), event["object"]
        if kind != "ERROR":
            _ = item["metadata"]["resourceVersion"]
        if kind in _OF_OBJECTS:
            _ = item["metadata"]["uid"]
        item.get("code")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError("what it sends is no watch of Kubernetes") from error
    return kind, item


def _remember(known: dict[str, Json], kind: str, item: Json) -> None:
    uid = item["metadata"]["uid"]
    if kind == "DELETED":
        known.pop(uid, None)
    else:
        known[uid] = item
