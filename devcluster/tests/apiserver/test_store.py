"""The store: versions, history, restarts."""

from pathlib import Path

import pytest

from longshore_devcluster.apiserver.store import Change, Key, Store, TooOld


def _object(name: str, **rest: object) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": name}, **rest}


def _key(name: str) -> Key:
    return Key("things", "ns", name)


@pytest.fixture
def store() -> Store:
    return Store(":memory:")


def test_every_write_has_a_version_of_its_own(store: Store) -> None:
    versions = [store.put(_key(name), _object(name)).version for name in "abc"]
    versions.append(store.remove(_key("a")).version)
    assert versions == sorted(set(versions)) and store.version == versions[-1]


def test_the_version_is_written_into_the_object(store: Store) -> None:
    record = store.put(_key("a"), _object("a"))
    assert record.obj["metadata"]["resourceVersion"] == str(record.version)


def test_lists_are_in_order_and_by_namespace(store: Store) -> None:
    for namespace, name in (("b", "1"), ("a", "2"), ("a", "1")):
        store.put(Key("things", namespace, name), _object(name))
    assert [(r.key.namespace, r.key.name) for r in store.items("things")] == [("a", "1"), ("a", "2"), ("b", "1")]
    assert [r.key.name for r in store.items("things", "a")] == ["1", "2"]


def test_the_past_can_be_read(store: Store) -> None:
    store.put(_key("a"), _object("a", n=1))
    then = store.put(_key("b"), _object("b")).version
    store.put(_key("a"), _object("a", n=2))
    store.remove(_key("b"))
    store.put(_key("c"), _object("c"))
    assert {r.key.name: r.obj.get("n") for r in store.items_at("things", "ns", then)} == {"a": 1, "b": None}


def test_changes_since_a_version_are_those_after_it(store: Store) -> None:
    store.put(_key("a"), _object("a"))
    then = store.version
    store.put(_key("a"), _object("a", n=1))
    store.put(Key("others", "ns", "x"), _object("x"))
    store.remove(_key("a"))
    assert [c.type for c in store.changes_since("things", then)] == ["MODIFIED", "DELETED"]


def test_a_full_log_forgets_its_oldest_part() -> None:
    store = Store(":memory:", log_length=20)
    first = store.put(_key("a"), _object("a")).version
    for n in range(30):
        store.put(_key("a"), _object("a", n=n))
    with pytest.raises(TooOld, match=rf"too old resource version: {first} \(\d+\)"):
        store.changes_since("things", first)
    assert store.changes_since("things", store.version - 5)[-1].obj["n"] == 29


def test_a_resource_has_no_past_before_its_beginning(store: Store) -> None:
    store.put(_key("a"), _object("a"))
    store.begin_history("young")
    with pytest.raises(TooOld):
        store.changes_since("young", 1)
    assert store.changes_since("young", store.version) == []


def test_listeners_hear_of_changes_until_they_stop(store: Store) -> None:
    heard: list[Change] = []
    stop = store.listen("things", heard.append)
    store.put(_key("a"), _object("a"))
    stop()
    store.put(_key("b"), _object("b"))
    assert [change.key.name for change in heard] == ["a"]


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store.put(_key("a"), _object("a"))
    then = store.version
    store.begin_history("young")
    store.put(_key("b"), _object("b"))
    store.close()
    again = Store(tmp_path / "db")
    assert again.version == store.version
    assert [r.key.name for r in again.items("things")] == ["a", "b"]
    assert [c.key.name for c in again.changes_since("things", then)] == ["b"]
    with pytest.raises(TooOld):
        again.changes_since("young", 1)
