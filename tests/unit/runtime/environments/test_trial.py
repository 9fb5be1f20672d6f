"""The scripted policy calls tools with arguments that fit their schemas."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from longshore_runtime.environments.tools import schemas_of
from longshore_runtime.environments.trial import example_value


def every_type(
    whole: int, real: float, sure: bool, text: str, texts: list[str], pair: tuple[int, str], ages: dict[str, int],
    either: int | str, maybe: str | None, whatever: Any, unit: Literal["km", "mi"], default: int = 3,
) -> None:  # fmt: skip
    """Take all.

    Args:
        whole: a number.
        real: a number.
        sure: whether.
        text: a text.
        texts: some texts.
        pair: two values.
        ages: numbers by text.
        either: a number or a text.
        maybe: a text or nothing.
        whatever: anything.
        unit: one of two.
        default: may be left out.
    """


def test_arguments_have_the_types_of_the_parameters_and_defaults_are_left_out() -> None:
    (schema,) = schemas_of([every_type])
    assert example_value(schema["function"]["parameters"]) == {
        "whole": 1,
        "real": 1.0,
        "sure": True,
        "text": "text",
        "texts": ["text"],
        "pair": [1, "text"],
        "ages": {},
        "either": 1,
        "maybe": "text",
        "whatever": "text",
        "unit": "km",
    }


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "array"}, {"type": "string"}]}, []),
        ({"type": "null"}, None),
        ({}, "text"),
        ({"type": "object", "required": ["anything"]}, {"anything": "text"}),
    ],
)
def test_schema_without_details_has_a_value_too(schema: Mapping[str, Any], value: object) -> None:
    assert example_value(schema) == value
