"""What every API model shares: camelCase on the wire, no unknown fields, docstrings as descriptions, rules."""

import re
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from longshore.api.limits import check_freeform
from longshore.api.rules import Rule, check, in_schema


class ApiModel(BaseModel):
    """Base of all API models: immutable, strict about unknown fields, camelCase in manifests.

    `class Model(ApiModel, rules=TABLE)` makes the rules of the table part of the model and of its JSON schema.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
        validate_default=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    def __init_subclass__(cls, *, rules: tuple[Rule, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.rules += rules

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if self.rules:
            check(self.rules, self._written(), type(self).__name__)
        return self

    def _written(self) -> Any:
        """Return the value as manifests write it, or the part that rules read."""
        return self.model_dump(mode="json", exclude_none=True, fallback=str)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        handler.resolve_ref_schema(schema).update(in_schema(cls.rules))
        return schema


_QUANTITY: Final = r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"


def _is_quantity(value: str | int) -> str | int:
    """Check the pattern once more, because JSON schema does not hold it against numbers."""
    if not re.fullmatch(_QUANTITY, str(value)):
        raise PydanticCustomError("quantity", "a quantity is a number with or without a unit, as 500m, 2 or 16Gi")
    return value


Quantity = Annotated[
    str | int,
    AfterValidator(_is_quantity),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "pattern": _QUANTITY}),
]
"""A Kubernetes quantity, as `500m`, `2` or `16Gi`."""


def _are_requests(value: Any) -> Any:
    if isinstance(value, dict) and any(isinstance(amount, dict) for amount in value.values()):
        raise PydanticCustomError("requests", "write the requests alone, as {memory: 16Gi}; limits go into template")
    return value


Requests = Annotated[dict[str, Quantity], Field(max_length=16), BeforeValidator(_are_requests)]
"""Requests of a container by resource."""


Freeform = Annotated[
    dict[str, Any],
    # Atomic: the API server does not keep a record of who owns which field inside, which can be larger than the object.
    Field(
        max_length=256,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"},
    ),
    AfterValidator(check_freeform),
]
"""An object that the API server stores as it is."""


_INSIDE: Final = (
    Rule(
        "",
        "self != '..' && !self.startsWith('../') && !self.contains('/../') && !self.endsWith('/..')",
        "the path must stay inside the storage of the job: remove the '..'",
    ),
)


def _stays_inside(path: str) -> str:
    check(_INSIDE, path, "path")
    return path


RelativePath = Annotated[
    str,
    Field(min_length=1, max_length=1024, pattern=r"^[^/].*$", json_schema_extra=in_schema(_INSIDE)),
    AfterValidator(_stays_inside),
]
"""A path inside the storage of the job (never absolute)."""

OutputPath = Annotated[
    str,
    Field(max_length=1024, pattern=r"^([^/].*)?$", json_schema_extra=in_schema(_INSIDE)),
    AfterValidator(_stays_inside),
]
"""The same; empty: a place that follows from the job."""


_IMPORT_PATH: Final = r"^[\w.]+:[\w]+$"


def _is_import_path(value: Any) -> Any:
    if isinstance(value, str) and not re.match(_IMPORT_PATH, value):
        raise PydanticCustomError(
            "import_path", "write package.module:function, names of Python without hyphens and slashes"
        )
    return value


ImportPath = Annotated[str, Field(max_length=256, pattern=_IMPORT_PATH), BeforeValidator(_is_import_path)]
"""A function of a Python module."""
