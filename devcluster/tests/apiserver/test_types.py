"""The type table."""

import kubernetes.client.models as models
import pytest

from longshore_devcluster.apiserver.builtin.table import builtin_resources
from longshore_devcluster.apiserver.decode import clean_builtin
from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.schema.builtin import TypeTable, builtin_types


@pytest.mark.parametrize("name", ["PodSpec", "Container", "Volume", "Probe", "DeploymentSpec", "ServiceSpec"])
def test_fields_are_those_of_the_public_client(name: str) -> None:
    known = set(getattr(models, f"V1{name}").attribute_map.values())
    assert set(builtin_types()[name].properties) == known


def test_every_resource_has_a_type_with_metadata() -> None:
    for resource in builtin_resources():
        assert "metadata" in resource.schema.properties, resource.plural


def test_field_numbers_are_unique_and_known() -> None:
    for name, message in builtin_types().messages.items():
        for field in message.numbers.values():
            assert field in message.properties, (name, field)
        assert len(set(message.numbers.values())) == len(message.numbers), name


def test_a_table_is_read_line_by_line() -> None:
    table = TypeTable(
        "package p\nmessage A\n  1! name string\n  2 items list(B) key=name merge=name\nmessage B\n  1 name string"
    )
    items = table["A"].properties["items"]
    assert table["A"].required == {"name"} and table["A"].name == "p.A"
    assert (items.list_type, items.map_keys, items.merge_key) == ("map", ("name",), "name")
    assert items.item is table["B"]


def test_decoding_drops_and_reports_what_is_not_known() -> None:
    body = {"metadata": {"name": "a", "labels": None, "annotations": {}}, "data": {"k": "v"}, "nope": 1}
    cleaned, unknown = clean_builtin(body, builtin_types()["ConfigMap"], "ConfigMap")
    assert cleaned == {"metadata": {"name": "a"}, "data": {"k": "v"}} and unknown == ["nope"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"data": {"x": 1}}, "cannot unmarshal number into Go struct field ConfigMap.data of type string"),
        ({"data": "x"}, "cannot unmarshal string into Go struct field ConfigMap.data of type map"),
        ({"immutable": "yes"}, "cannot unmarshal string into Go struct field ConfigMap.immutable of type bool"),
    ],
)
def test_a_wrong_type_is_a_bad_request(body: dict[str, object], message: str) -> None:
    with pytest.raises(ApiError, match=message):
        clean_builtin(body, builtin_types()["ConfigMap"], "ConfigMap")
