"""The API's errors: ``Status`` objects with their HTTP codes, reasons and messages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from longshore_devcluster.apiserver.schema.node import Json, Object

_STATUS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}}


class ApiError(Exception):
    """A refusal that the client sees as a ``Status`` of kind Failure.

    ``reason`` is empty where the real server sends none (plain internal errors).
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Object | None = None,
        *,
        headers: dict[str, str] | None = None,
        metadata: Object | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}
        self.metadata = metadata or {}

    def status(self) -> Object:
        body: Object = {**_STATUS, "metadata": self.metadata, "status": "Failure", "message": self.message}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return {**body, "code": self.code}


class PlainNotFound(Exception):
    """A path outside the API: answered as text/plain, as a plain web server would."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """What an error message calls an object: ``widgets.lab.example.com "w1"``."""

    group: str
    resource: str
    name: str = ""

    @property
    def qualified(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def details(self) -> Object:
        named: Object = {"name": self.name} if self.name else {}
        if self.group:
            named["group"] = self.group
        return {**named, "kind": self.resource} if self.resource else named


@dataclass(frozen=True, slots=True)
class FieldError:
    """One cause of a 422."""

    reason: str
    field: str
    message: str


def compact(value: Json) -> str:
    """Return a value as Go prints it inside messages: JSON with ``<``, ``>`` and ``&`` escaped."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def field_invalid(field: str, value: Json, detail: str) -> FieldError:
    # Text is quoted as it is; only what is printed as JSON is escaped.
    shown = orjson.dumps(value).decode() if isinstance(value, str) else compact(value)
    return FieldError("FieldValueInvalid", field, f"Invalid value: {shown}: {detail}")


def field_invalid_text(field: str, shown: str, detail: str, reason: str = "FieldValueInvalid") -> FieldError:
    return FieldError(reason, field, f"Invalid value: {shown}: {detail}")


def field_required(field: str, detail: str = "") -> FieldError:
    return FieldError("FieldValueRequired", field, "Required value" + (f": {detail}" if detail else ""))


def field_forbidden(field: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def field_duplicate(field: str, value: Json) -> FieldError:
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {compact(value)}")


def field_too_long(field: str, limit: int) -> FieldError:
    return FieldError("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def field_not_supported(field: str, value: Json, supported: Iterable[str]) -> FieldError:
    listed = ", ".join(compact(value) for value in supported)
    return FieldError(
        "FieldValueNotSupported", field, f"Unsupported value: {compact(value)}: supported values: {listed}"
    )


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(ref: ObjectRef) -> ApiError:
    return ApiError(404, "NotFound", f'{ref.qualified} "{ref.name}" not found', ref.details)


def no_such_resource() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def already_exists(ref: ObjectRef) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{ref.qualified} "{ref.name}" already exists', ref.details)


def conflict(ref: ObjectRef, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {ref.qualified} "{ref.name}": {why}'
    return ApiError(409, "Conflict", message, ref.details)


def stale(ref: ObjectRef) -> ApiError:
    return conflict(ref, "the object has been modified; please apply your changes to the latest version and try again")


def invalid(ref: ObjectRef, causes: Sequence[FieldError]) -> ApiError:
    """Return a 422; ``ref.resource`` is the *kind* here, as the real server has it."""
    listed = [f"{cause.field}: {cause.message}" for cause in causes]
    shown = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    details = {
        **ref.details,
        "causes": [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes],
    }
    return ApiError(422, "Invalid", f'{ref.qualified} "{ref.name}" is invalid: {shown}', details)


def invalid_options(kind: str, cause: FieldError) -> ApiError:
    """Return a 422 about query parameters; ``kind`` is ListOptions, PatchOptions, ..."""
    return invalid(ObjectRef("meta.k8s.io", kind), [cause])


def rejected() -> ApiError:
    """Return the 422 of a JSON patch that does not fit."""
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def forbidden(ref: ObjectRef, why: str) -> ApiError:
    named = f'{ref.qualified} "{ref.name}"' if ref.name else ref.qualified
    return ApiError(403, "Forbidden", f"{named} is forbidden: {why}", ref.details)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def unsupported_media(accepted: Iterable[str]) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", message)


def internal(message: str) -> ApiError:
    return ApiError(500, "", message)


def expired(message: str, *, metadata: Object | None = None) -> ApiError:
    return ApiError(410, "Expired", message, metadata=metadata)


def too_large_version(requested: int, current: int) -> ApiError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return ApiError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {requested}, current: {current}",
        {"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )
