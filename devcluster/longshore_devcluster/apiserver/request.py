"""What a request asks for: path, verb and options, before anything is decided about it."""

import re
from dataclasses import dataclass
from typing import Literal

from longshore_devcluster.apiserver.errors import (
    bad_request,
    field_forbidden,
    field_not_supported,
    field_required,
    field_too_long,
    invalid_options,
)

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
Query = dict[str, str]


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """The attributes that authorization and routing read. ``resource`` is empty for non-resource paths."""

    path: str
    verb: str
    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    name: str = ""
    subresource: str = ""
    selected_name: str = ""
    """The only object that a list, watch or deletion of a collection is about: rights to that object suffice for it."""

    @property
    def is_resource(self) -> bool:
        return bool(self.resource)


def parse_request(method: str, path: str, query: Query) -> RequestInfo:
    """Take a path of the API apart; anything else is a non-resource request (verb: the method)."""
    other = RequestInfo(path, method.lower())
    match = re.fullmatch(r"/(?:api/([^/]+)|apis/([^/]+)/([^/]+))/(.+)", path.rstrip("/"))
    if match is None:
        return other
    group, version = match[2] or "", match[1] or match[3]
    parts = match[4].split("/")
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2 and not (len(parts) == 3 and parts[2] in _NAMESPACE_PARTS):
        namespace, parts = parts[1], parts[2:]
    elif parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
    resource, name, subresource = (*parts, "", "", "")[:3]
    if len(parts) > 3 and resource not in ("pods", "services", "nodes"):
        return other
    selected = "" if name else _selected_name(query)
    return RequestInfo(
        path, _verb(method, name, query), group, version, namespace, resource, name, subresource, selected
    )


def _selected_name(query: Query) -> str:
    terms = (re.fullmatch(r"metadata\.name==?([^=]+)", term) for term in query.get("fieldSelector", "").split(","))
    return next((term[1] for term in terms if term is not None), "")


_NAMESPACE_PARTS = ("status", "finalize")


def _verb(method: str, name: str, query: Query) -> str:
    verb = _VERBS.get(method, method.lower())
    if verb == "get" and not name:
        return "watch" if is_true(query.get("watch", "")) else "list"
    return "deletecollection" if verb == "delete" and not name else verb


def is_true(text: str) -> bool:
    return text.lower() in ("true", "1")


FieldValidation = Literal["Ignore", "Warn", "Strict"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of create, update, patch and apply. ``manager`` is who owns the fields that the write sets."""

    manager: str
    dry_run: bool = False
    field_validation: FieldValidation = "Warn"
    force: bool = False


def write_options(kind: str, query: Query, user_agent: str, *, apply: bool = False) -> WriteOptions:
    """Read and check the options; ``kind`` is CreateOptions, UpdateOptions or PatchOptions."""
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        cause = field_not_supported("dryRun", [dry_run], ("All",))
        raise invalid_options(kind, cause)
    validation = query.get("fieldValidation", "")
    if validation not in ("", "Ignore", "Strict", "Warn"):
        cause = field_not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn"))
        raise invalid_options(kind, cause)
    manager = query.get("fieldManager", "")
    if len(manager) > 128:
        raise invalid_options(kind, field_too_long("fieldManager", 128))
    if apply and not manager:
        raise invalid_options(kind, field_required("fieldManager", "is required for apply patch"))
    if not apply and is_true(query.get("force", "")):
        raise invalid_options(kind, field_forbidden("force", "may not be specified for non-apply patch"))
    return WriteOptions(
        manager or (user_agent.split("/", 1)[0] or "unknown"),
        dry_run == "All",
        validation or "Warn",  # type: ignore[arg-type]
        is_true(query.get("force", "")),
    )


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of list, watch and deletecollection. ``limit`` 0 means all."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    version_match: str = ""
    send_initial_events: bool = False
    bookmarks: bool = False
    timeout_s: float | None = None


def list_options(query: Query) -> ListOptions:
    """Read and check the options; raise as the real server does."""
    watch = is_true(query.get("watch", ""))
    initial = query.get("sendInitialEvents")
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    if initial is not None and not watch:
        raise _forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if initial is not None and match != "NotOlderThan":
        rule = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise _forbidden("resourceVersionMatch", rule)
    if match and watch and initial is None:
        rule = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise _forbidden("resourceVersionMatch", rule)
    if match and not watch and not version:
        rule = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        raise _forbidden("resourceVersionMatch", rule)
    if match not in ("", "Exact", "NotOlderThan"):
        supported = ("Exact", "NotOlderThan", "")
        raise invalid_options("ListOptions", field_not_supported("resourceVersionMatch", match, supported))
    timeout = _integer(query, "timeoutSeconds")
    return ListOptions(
        query.get("labelSelector", ""),
        query.get("fieldSelector", ""),
        _integer(query, "limit") or 0,
        query.get("continue", ""),
        version,
        match,
        is_true(initial or ""),
        is_true(query.get("allowWatchBookmarks", "")),
        timeout,
    )


def _forbidden(name: str, rule: str) -> Exception:
    return invalid_options("ListOptions", field_forbidden(name, rule))


def _integer(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not re.fullmatch(r"-?\d+", text):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of delete, from its body and query."""

    grace_period_s: int | None = None
    propagation: Literal["Background", "Foreground", "Orphan", ""] = ""
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def delete_options(body: dict[str, object], query: Query) -> DeleteOptions:
    conditions = body.get("preconditions")
    preconditions = conditions if isinstance(conditions, dict) else {}
    grace = body.get("gracePeriodSeconds")
    propagation = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    if body.get("orphanDependents") is True or is_true(query.get("orphanDependents", "")):
        propagation = "Orphan"
    if propagation not in ("", "Background", "Foreground", "Orphan"):
        cause = field_not_supported(
            "propagationPolicy", str(propagation), ("Foreground", "Background", "Orphan", "nil")
        )
        raise invalid_options("DeleteOptions", cause)
    return DeleteOptions(
        grace if isinstance(grace, int) else _integer(query, "gracePeriodSeconds"),
        propagation,
        preconditions.get("uid"),
        preconditions.get("resourceVersion"),
        bool(body.get("dryRun")) or query.get("dryRun") == "All",
    )
