"""Lists, pages, selectors and Tables."""

import pytest

from tests.contract.kube_api.api import TABLE, Api, widget


@pytest.fixture
def five(api: Api, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    for index in range(5):
        labels = {"n": str(index), "odd": str(index % 2 == 1).lower()}
        assert api.post(path, {"metadata": {"name": f"s{index}", "labels": labels}, "type": "t"}).status == 201
    return path


def _names(answer: object) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("odd=true", ["s1", "s3"]),
        ("odd!=true", ["s0", "s2", "s4"]),
        ("n in (0,3)", ["s0", "s3"]),
        ("n notin (0,1,2)", ["s3", "s4"]),
        ("n,!absent,odd==false", ["s0", "s2", "s4"]),
        ("absent", []),
    ],
)
def test_label_selectors(api: Api, five: str, selector: str, expected: list[str]) -> None:
    assert _names(api.get(five, labelSelector=f"{selector},odd").json) == expected


def test_field_selectors(api: Api, five: str) -> None:
    assert _names(api.get(five, fieldSelector="metadata.name=s2").json) == ["s2"]
    assert len(api.get(five, fieldSelector="type!=t,metadata.name!=s2").json["items"]) == 0
    assert api.get(five, fieldSelector="data.x=1").status == 400


def test_selectable_fields_of_custom_resources(api: Api, widget_path: str) -> None:
    for name, size in (("a", "small"), ("b", "large")):
        assert api.post(widget_path, widget(name, size=size)).status == 201
    assert _names(api.get(widget_path, fieldSelector="spec.size=large").json) == ["b"]
    refused = api.get(widget_path, fieldSelector="spec.note=x")
    assert (refused.status, refused.json["message"]) == (400, "field label not supported: spec.note")


def test_pages_show_one_moment(api: Api, five: str) -> None:
    first = api.get(five, limit=2).json
    assert _names(first) == ["s0", "s1"] and first["metadata"]["remainingItemCount"] == 3
    api.delete(f"{five}/s4")
    second = api.get(five, limit=2, **{"continue": first["metadata"]["continue"]}).json
    third = api.get(five, limit=2, **{"continue": second["metadata"]["continue"]}).json
    assert _names(second) + _names(third) == ["s2", "s3", "s4"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "continue" not in third["metadata"]


def test_a_list_at_a_version_shows_that_version(api: Api, five: str) -> None:
    version = api.get(five).json["metadata"]["resourceVersion"]
    api.delete(f"{five}/s0")
    then = api.get(five, resourceVersion=version, resourceVersionMatch="Exact").json
    assert _names(then) == ["s0", "s1", "s2", "s3", "s4"]


def test_a_version_of_the_future_is_not_served(api: Api, five: str) -> None:
    answer = api.get(five, resourceVersion="999999999999")
    assert answer.status == 504
    assert answer.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_items_of_built_in_lists_do_not_repeat_their_kind(api: Api, five: str) -> None:
    listed = api.get(five).json
    assert listed["kind"] == "SecretList" and "kind" not in listed["items"][0]


def test_printer_columns_of_custom_resources(api: Api, widget_path: str) -> None:
    api.post(widget_path, widget())
    api.patch(f"{widget_path}/w/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    table = api.get(widget_path, accept=TABLE).json
    columns = [(c["name"], c["type"], c["priority"]) for c in table["columnDefinitions"]]
    assert columns == [
        ("Name", "string", 0), ("Size", "string", 0), ("Replicas", "integer", 0), ("Ready", "string", 0),
        ("Note", "string", 1), ("Age", "date", 0),
    ]  # fmt: skip
    assert table["rows"][0]["cells"][:5] == ["w", "small", 1, "True", None]


def test_metadata_alone_can_be_asked_for(api: Api, five: str) -> None:
    listed = api.get(five, accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").json
    assert listed["kind"] == "PartialObjectMetadataList" and "type" not in listed["items"][0]
