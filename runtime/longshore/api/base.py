"""What every API model shares: camelCase on the wire, no unknown fields, docstrings as descriptions, CEL rules."""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from longshore.api.limits import check_freeform

CEL_RULES = "x-kubernetes-validations"


class ApiModel(BaseModel):
    """Base of all API models: immutable, strict about unknown fields, camelCase in manifests."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
        validate_default=True,
    )


def cel(*rules: tuple[str, str] | tuple[str, str, str]) -> dict[str, Any]:
    """JSON schema extension with CEL rules, each (rule, message) or (rule, message, fieldPath)."""
    entries = []
    for rule, message, *path in rules:
        entry = {"rule": rule, "message": message}
        if path:
            entry["fieldPath"] = path[0]
        entries.append(entry)
    return {CEL_RULES: entries}


IMMUTABLE = cel(("self == oldSelf", "the field is immutable; create a new RLJob instead"))

_QUANTITY: Final = r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"


def _is_quantity(value: str | int) -> str | int:
    """The pattern again, which JSON schema does not hold against numbers."""
    if not re.fullmatch(_QUANTITY, str(value)):
        raise PydanticCustomError("quantity", "a quantity is a number with or without a unit, as 500m, 2 or 16Gi")
    return value


Quantity = Annotated[
    str | int,
    AfterValidator(_is_quantity),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": _QUANTITY}),
]
"""A Kubernetes quantity, as `500m`, `2` or `16Gi`."""


Freeform = Annotated[
    dict[str, Any],
    AfterValidator(check_freeform),
    # Atomic: the API server does not keep a record of who owns which field inside, which can be larger than the object.
    Field(
        max_length=256,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"},
    ),
]
"""An object that the API server stores as it is."""


_STAYS_INSIDE = "self != '..' && !self.startsWith('../') && !self.contains('/../') && !self.endsWith('/..')"


def _stays_inside(path: str) -> str:
    if ".." in path.split("/"):
        raise PydanticCustomError("path", "must stay inside the storage of the job: remove the '..'")
    return path


_INSIDE = cel((_STAYS_INSIDE, "the path must stay inside the storage of the job: remove the '..'"))

RelativePath = Annotated[
    str,
    Field(min_length=1, max_length=1024, pattern=r"^[^/].*$", json_schema_extra=_INSIDE),
    AfterValidator(_stays_inside),
]
"""A path inside the storage of the job (never absolute)."""

OutputPath = Annotated[
    str,
    Field(max_length=1024, pattern=r"^([^/].*)?$", json_schema_extra=_INSIDE),
    AfterValidator(_stays_inside),
]
"""The same; empty: a place that follows from the job."""
