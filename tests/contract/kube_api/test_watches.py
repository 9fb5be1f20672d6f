"""Watches."""

import pytest

from tests.contract.kube_api.api import TABLE, Api, Json


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


def _seen(events: list[Json]) -> list[tuple[str, str]]:
    return [(e["type"], e["object"]["metadata"].get("name", "")) for e in events]


def test_a_watch_continues_a_list(api: Api, path: str) -> None:
    api.post(path, {"metadata": {"name": "before"}})
    version = api.get(path).json["metadata"]["resourceVersion"]
    with api.watching(path, resourceVersion=version) as events:
        api.post(path, {"metadata": {"name": "a"}})
        api.patch(f"{path}/a", {"metadata": {"labels": {"x": "y"}}})
        api.delete(f"{path}/a")
        seen = events.take(3)
    assert _seen(seen) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in seen]
    assert versions == sorted(set(versions)) and versions[0] > int(version)


def test_a_watch_resumes_where_it_ended(api: Api, path: str) -> None:
    api.post(path, {"metadata": {"name": "a"}})
    version = api.post(path, {"metadata": {"name": "b"}}).json["metadata"]["resourceVersion"]
    api.post(path, {"metadata": {"name": "c"}})
    assert _seen(api.watch(path, resourceVersion=version)) == [("ADDED", "c")]


def test_a_watch_without_version_begins_with_what_is_there(api: Api, path: str) -> None:
    api.post(path, {"metadata": {"name": "a"}})
    api.post(path, {"metadata": {"name": "b"}})
    assert _seen(api.watch(path)) == [("ADDED", "a"), ("ADDED", "b")]


def test_objects_enter_and_leave_a_selected_watch(api: Api, path: str) -> None:
    version = api.get(path).json["metadata"]["resourceVersion"]
    with api.watching(path, resourceVersion=version, labelSelector="show=yes") as events:
        api.post(path, {"metadata": {"name": "a"}})
        api.patch(f"{path}/a", {"metadata": {"labels": {"show": "yes"}}})
        api.patch(f"{path}/a", {"metadata": {"annotations": {"n": "1"}}})
        api.patch(f"{path}/a", {"metadata": {"labels": {"show": "no"}}})
        assert _seen(events.take(3)) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_a_watch_list_marks_the_end_of_its_beginning(api: Api, path: str) -> None:
    api.post(path, {"metadata": {"name": "a"}})
    events = api.watch(path, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true")
    assert _seen(events)[:2] == [("ADDED", "a"), ("BOOKMARK", "")]
    assert events[1]["object"]["kind"] == "Secret"
    assert events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"


def test_a_watch_list_needs_its_version_match(api: Api, path: str) -> None:
    answer = api.get(path, watch="true", sendInitialEvents="true", allowWatchBookmarks="true", timeoutSeconds=1)
    assert (answer.status, answer.json["details"]["kind"]) == (422, "ListOptions")
    assert api.get(path, sendInitialEvents="true").status == 422


def test_bookmarks_come_before_the_end(api: Api, path: str) -> None:
    version = api.get(path).json["metadata"]["resourceVersion"]
    # A server that is late may send none.
    assert any(_ends_with_a_bookmark(api, path, version) for _ in range(12))


def _ends_with_a_bookmark(api: Api, path: str, version: str) -> bool:
    """Whether the last event is one that tells of a change; no bookmark tells less than where the watch began."""
    with api.watching(path, resourceVersion=version, allowWatchBookmarks="true", timeoutSeconds=5) as events:
        # Without a change a real server has nothing to tell.
        created = api.post(path, {"metadata": {"generateName": "a-"}}).json
        seen = events.to_the_end()
    bookmarks = [e for e in seen if e["type"] == "BOOKMARK"]
    assert all(_version(one["object"]) >= int(version) for one in bookmarks)
    return bool(bookmarks) and seen[-1] == bookmarks[-1] and _version(bookmarks[-1]["object"]) >= _version(created)


def _version(found: Json) -> int:
    return int(found["metadata"]["resourceVersion"])


def test_a_version_that_is_too_old_is_an_event(api: Api, widget_path: str) -> None:
    events = api.watch(widget_path, resourceVersion="1")
    assert events[0]["type"] == "ERROR"
    assert (events[0]["object"]["code"], events[0]["object"]["reason"]) == (410, "Expired")
    assert events[0]["object"]["message"].startswith("too old resource version: 1 (")


def test_a_version_that_is_none_is_refused(api: Api, path: str) -> None:
    assert api.get(path, watch="true", resourceVersion="abc", timeoutSeconds=1).status == 500


def test_only_the_first_table_has_columns(api: Api, path: str) -> None:
    api.post(path, {"metadata": {"name": "a"}})
    api.post(path, {"metadata": {"name": "b"}})
    events = api.watch(path, accept=TABLE)
    assert [e["object"]["kind"] for e in events] == ["Table", "Table"]
    assert events[0]["object"]["columnDefinitions"] and events[1]["object"]["columnDefinitions"] is None
