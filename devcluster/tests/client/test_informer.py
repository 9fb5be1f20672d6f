"""A local copy stays true, whatever a reflector reports; `tests/contract/kube_client` covers its watches."""

import asyncio
from collections.abc import AsyncIterator

from devcluster.tests.builders import Json

from longshore_devcluster.client.informer import Informer
from longshore_kube.access import Access
from longshore_kube.client import Client
from longshore_kube.reflector import Changed, Listed
from longshore_kube.resources import CONFIG_MAPS

Change = tuple[str | None, str | None]
News = Listed[Json] | Changed[Json]


def config_map(name: str, version: int, uid: str = "") -> Json:
    meta = {"namespace": "default", "name": name, "resourceVersion": str(version), "uid": uid or f"uid-{name}"}
    return {"metadata": meta, "data": {}}


class Scripted:
    """In place of a reflector."""

    def __init__(self, news: tuple[News, ...]) -> None:
        self._news = news

    async def changes(self) -> AsyncIterator[News]:
        for one in self._news:
            yield one


def following(*news: News) -> Informer:
    informer = Informer(Client(Access("http://127.0.0.1:1"), "test"), CONFIG_MAPS)
    informer._reflector = Scripted(news)  # type: ignore[assignment]
    return informer


def listed(version: int, *items: Json) -> Listed[Json]:
    return Listed(list(items), version)


def seen(informer: Informer) -> list[Change]:
    """What the informer reports: (old, new) by name and version."""
    found: list[Change] = []

    def text(obj: Json | None) -> str | None:
        return None if obj is None else f"{obj['metadata']['name']}@{obj['metadata']['resourceVersion']}"

    informer.listen(lambda old, new: found.append((text(old), text(new))))
    asyncio.run(informer.run())
    return found


def test_list_then_watch() -> None:
    informer = following(
        listed(5, config_map("a", 1)),
        Changed("MODIFIED", config_map("a", 6)),
        Changed("ADDED", config_map("b", 7)),
        Changed("DELETED", config_map("a", 8)),
    )

    assert seen(informer) == [(None, "a@1"), ("a@1", "a@6"), (None, "b@7"), ("a@8", None)]
    assert [obj["metadata"]["name"] for obj in informer] == ["b"]
    assert informer.get("default", "b") == config_map("b", 7)


def test_another_list_is_turned_into_the_changes_that_were_missed() -> None:
    informer = following(
        listed(5, config_map("gone", 1), config_map("kept", 2), config_map("changed", 3)),
        listed(40, config_map("kept", 2), config_map("changed", 30), config_map("new", 31)),
    )

    assert seen(informer)[3:] == [("gone@1", None), ("changed@3", "changed@30"), (None, "new@31")]
    assert {obj["metadata"]["name"] for obj in informer} == {"kept", "changed", "new"}


def test_object_recreated_while_nobody_watched_is_a_deletion_and_an_addition() -> None:
    informer = following(listed(5, config_map("a", 1)), listed(40, config_map("a", 30, uid="another")))

    assert seen(informer)[1:] == [("a@1", None), (None, "a@30")]


def test_own_writes_count_at_once_and_are_not_reported_twice() -> None:
    informer = following(listed(5), Changed("ADDED", config_map("mine", 6)), Changed("ADDED", config_map("other", 7)))
    informer.observe(config_map("mine", 6))

    assert seen(informer) == [(None, "mine@6"), (None, "other@7")]
