"""One served version of a custom resource: pruning, defaults and validation of its objects."""

from dataclasses import dataclass

from longshore_devcluster.apiserver.crd.cel import RuleSet
from longshore_devcluster.apiserver.crd.openapi_checks import schema_errors
from longshore_devcluster.apiserver.crd.structural import fill_defaults, prune
from longshore_devcluster.apiserver.errors import FieldError, field_invalid_text
from longshore_devcluster.apiserver.schema.node import Object, Schema

_BLOCKING = ("FieldValueRequired", "FieldValueTypeInvalid", "FieldValueNotSupported", "FieldValueDuplicate",
             "FieldValueTooLong", "FieldValueTooMany")  # fmt: skip
_SKIPPED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation"
)


@dataclass(frozen=True, slots=True)
class CustomVersion:
    """The behaviour of one version."""

    schema: Schema
    rules: RuleSet

    def prune(self, obj: Object) -> list[str]:
        """Remove unknown fields, in place; return their paths."""
        return prune(obj, self.schema)

    def fill_defaults(self, obj: Object) -> None:
        fill_defaults(obj, self.schema)

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return the schema errors; where the object's shape is sound, also those of its rules."""
        errors = list(schema_errors(new, self.schema))
        if any(error.reason in _BLOCKING for error in errors):
            return [*errors, field_invalid_text("<nil>", "null", _SKIPPED)]
        return [*errors, *self.rules.errors(new, old)]
