"""What every API model shares: camelCase on the wire, no unknown fields, docstrings as descriptions, CEL rules."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

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

Quantity = Annotated[
    str | int,
    Field(
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$",
        }
    ),
]
"""A Kubernetes quantity, as `500m`, `2` or `16Gi`."""

Freeform = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object that the API server stores as it is."""

RelativePath = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^/].*$")]
"""A path inside the storage of the job (never absolute)."""
