"""Field sets and ownership."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore_devcluster.apiserver import fieldsets
from longshore_devcluster.apiserver.apply import apply
from longshore_devcluster.apiserver.ownership import Owner, entries_of, store
from longshore_devcluster.apiserver.schema.builtin import builtin_types

POD = builtin_types()["Pod"]
ELEMENTS = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
PATHS = st.frozensets(st.lists(ELEMENTS, min_size=1, max_size=4).map(tuple), max_size=8)


@given(PATHS)
def test_encoding_loses_nothing(paths: frozenset[tuple[str, ...]]) -> None:
    assert fieldsets.decode(fieldsets.encode(paths)) == paths


def test_an_inner_member_is_marked_by_a_dot() -> None:
    assert fieldsets.encode({("f:a",), ("f:a", "f:b")}) == {"f:a": {".": {}, "f:b": {}}}


def test_paths_are_shown_as_people_write_them() -> None:
    path = ("f:spec", "f:containers", 'k:{"name":"c"}', "f:image")
    assert fieldsets.show(path) == '.spec.containers[name="c"].image'


def _pod(**image_by_name: str) -> dict[str, Any]:
    containers = [{"name": name, "image": image} for name, image in image_by_name.items()]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers}}


def test_comparison_separates_added_removed_and_modified() -> None:
    found = fieldsets.compare(_pod(a="1", b="1"), _pod(a="2", c="1"), POD)
    item = ("f:spec", "f:containers")
    assert found.modified == {(*item, 'k:{"name":"a"}', "f:image")}
    assert (*item, 'k:{"name":"c"}') in found.added and (*item, 'k:{"name":"b"}') in found.removed


def test_ports_with_and_without_protocol_are_the_same_item() -> None:
    ports = POD.properties["spec"].properties["containers"].item.properties["ports"]  # type: ignore[union-attr]
    assert fieldsets.item_element({"containerPort": 80}, ports) == fieldsets.item_element(
        {"containerPort": 80, "protocol": "TCP"}, ports
    )


def _applied(live: dict[str, Any], config: dict[str, Any], manager: str, *, force: bool = False) -> dict[str, Any]:
    result = apply(live, config, POD, Owner(manager, "Apply", "v1"), force=force)
    store(result.obj, result.owners, entries_of(live), datetime(2026, 1, 1, tzinfo=UTC))
    return result.obj


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3))
def test_applying_twice_changes_nothing_more(images: dict[str, str]) -> None:
    once = _applied({"metadata": {}}, _pod(**images), "one")
    assert _applied(once, _pod(**images), "one") == once


@given(
    st.dictionaries(st.sampled_from("abc"), st.just("1"), max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.just("1"), max_size=3),
)
def test_what_both_apply_stays_until_both_drop_it(one: dict[str, str], two: dict[str, str]) -> None:
    live = _applied(_applied({"metadata": {}}, _pod(**one), "one"), _pod(**two), "two")
    assert {c["name"] for c in live["spec"]["containers"]} == {*one, *two}
    left = _applied(live, {"metadata": {"name": "p"}}, "one")
    assert {c["name"] for c in left.get("spec", {}).get("containers", [])} == set(two)
