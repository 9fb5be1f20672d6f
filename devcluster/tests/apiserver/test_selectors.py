"""Selectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.selectors import (
    matches_fields,
    matches_labels,
    parse_fields,
    parse_labels,
)
from longshore_devcluster.client.selectors import from_object

LABEL = st.text("abcdefgh0123-._", min_size=1, max_size=8).map(lambda text: f"x{text}x")


def _labelled(**labels: str) -> dict[str, object]:
    return {"metadata": {"labels": labels}}


@given(LABEL, LABEL, LABEL)
def test_equality_and_its_opposite_divide_all_objects(key: str, value: str, other: str) -> None:
    for obj in (_labelled(), _labelled(**{key: value}), _labelled(**{key: other})):
        equal = matches_labels(parse_labels(f"{key}={value}"), obj)
        unequal = matches_labels(parse_labels(f"{key}!={value}"), obj)
        assert equal != unequal


@given(LABEL, st.lists(LABEL, min_size=1, max_size=4), LABEL)
def test_a_set_is_the_union_of_its_values(key: str, values: list[str], actual: str) -> None:
    obj = _labelled(**{key: actual})
    assert matches_labels(parse_labels(f"{key} in ({','.join(values)})"), obj) == (actual in values)
    assert matches_labels(parse_labels(f"{key} notin ({','.join(values)})"), obj) == (actual not in values)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ("", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("a=", {"a": ""}, True),
        ("a==b , c", {"a": "b", "c": "d"}, True),
        ("n>3", {"n": "4"}, True),
        ("n<3", {"n": "4"}, False),
        ("example.com/a=b", {"example.com/a": "b"}, True),
    ],
)
def test_the_string_form(selector: str, labels: dict[str, str], expected: bool) -> None:
    assert matches_labels(parse_labels(selector), _labelled(**labels)) is expected


@pytest.mark.parametrize("text", ["==", "a in", "a in (b", "a=b c", "a,", "n>x"])
def test_what_cannot_be_read_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as error:
        parse_labels(text)
    assert error.value.code == 400


def test_the_object_form_needs_all_its_parts() -> None:
    selector = from_object(
        {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["1", "2"]}]}
    )
    assert selector is not None
    assert matches_labels(selector, _labelled(a="b", c="2"))
    assert not matches_labels(selector, _labelled(a="b", c="3"))
    assert from_object(None) is None and from_object({}) == ()


def test_fields_are_compared_as_text() -> None:
    known = {"spec.n": lambda obj: str(obj["spec"]["n"])}
    selector = parse_fields("spec.n!=3", known, custom=False)
    assert matches_fields(selector, known, {"spec": {"n": 4}})
    with pytest.raises(ApiError, match="is not a known field selector"):
        parse_fields("spec.m=3", known, custom=False)
