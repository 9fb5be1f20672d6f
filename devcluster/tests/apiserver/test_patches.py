"""Patches."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore_devcluster.apiserver.errors import ApiError
from longshore_devcluster.apiserver.patches import JSON_PATCH, MERGE_PATCH, merged, patch_change, strategic
from longshore_devcluster.apiserver.schema.builtin import builtin_types

POD = builtin_types()["Pod"]
VALUES = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=2), VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_applied_twice_is_applied_once(obj: dict[str, object], patch: dict[str, object]) -> None:
    once = merged(obj, patch)
    assert merged(once, patch) == once


def _pod(*containers: dict[str, object], **spec: object) -> dict[str, object]:
    return {"spec": {"containers": list(containers), **spec}}


def _names(pod: object) -> list[str]:
    return [c["name"] for c in pod["spec"]["containers"]]  # type: ignore[index]


def test_items_are_deleted_by_directive() -> None:
    pod = _pod({"name": "a"}, {"name": "b"})
    assert _names(strategic(pod, _pod({"name": "a", "$patch": "delete"}), POD)) == ["b"]


def test_a_list_is_replaced_by_directive() -> None:
    pod = _pod({"name": "a"}, {"name": "b"})
    assert _names(strategic(pod, _pod({"name": "c"}, {"$patch": "replace"}), POD)) == ["c"]


def test_the_order_of_elements_is_that_of_the_patch() -> None:
    pod = _pod({"name": "a"}, {"name": "b"})
    patch = _pod({"name": "c"}, **{"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]})
    assert _names(strategic(pod, patch, POD)) == ["c", "b", "a"]


def test_lists_of_values_are_merged_as_sets_where_the_type_says_so() -> None:
    obj = {"metadata": {"finalizers": ["a", "b"]}}
    patch = {"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert sorted(strategic(obj, patch, POD)["metadata"]["finalizers"]) == ["b", "c"]


def test_retained_keys_drop_the_others() -> None:
    table = builtin_types()["Deployment"]
    obj = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic(obj, patch, table)["spec"]["strategy"] == {"type": "Recreate"}


def test_other_lists_are_replaced() -> None:
    pod = _pod({"name": "a", "args": ["1", "2"]})
    assert strategic(pod, _pod({"name": "a", "args": ["3"]}), POD)["spec"]["containers"][0]["args"] == ["3"]


@pytest.mark.parametrize(("media", "body", "code"), [(MERGE_PATCH, b"{", 400), (JSON_PATCH, b"{}", 400)])
def test_unreadable_patches_are_bad_requests(media: str, body: bytes, code: int) -> None:
    with pytest.raises(ApiError) as error:
        patch_change(media, body, POD)
    assert error.value.code == code


def test_a_json_patch_that_does_not_fit_is_rejected() -> None:
    change = patch_change(JSON_PATCH, orjson.dumps([{"op": "remove", "path": "/x/y"}]), POD)
    with pytest.raises(ApiError) as error:
        change({})
    assert error.value.code == 422
