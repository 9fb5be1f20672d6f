"""Longshore's own client, against a real API server: the embedded one, or that of ``--kubeconfig``."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore_kube import client as module
from longshore_kube.access import Access, from_kubeconfig
from longshore_kube.blocking import Blocking
from longshore_kube.client import Client, Patch
from longshore_kube.errors import ApiError
from longshore_kube.reflector import Changed, Listed, Reflector
from longshore_kube.resources import CONFIG_MAPS, PODS

LIMIT_S = 180.0


@pytest.fixture
def access(kubeconfig: str) -> Access:
    return from_kubeconfig(kubeconfig)


@pytest.fixture
async def client(access: Access) -> AsyncIterator[Client]:
    async with Client(access, "contract") as client:
        yield client


def config_map(namespace: str, name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name}, "data": data}


async def create(client: Client, namespace: str, *names: str) -> None:
    for name in names:
        await client.create(CONFIG_MAPS, config_map(namespace, name), namespace)


class TestObjects:
    async def test_an_object_lives(self, client: Client, namespace: str) -> None:
        created = await client.create(CONFIG_MAPS, config_map(namespace, "a", k="1"), namespace)
        replaced = await client.replace(CONFIG_MAPS, created | {"data": {"k": "2"}})
        await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"n": "1"}})
        await client.patch(
            CONFIG_MAPS, "a", namespace, [{"op": "add", "path": "/data/m", "value": "1"}], kind=Patch.JSON
        )
        assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"k": "2", "n": "1", "m": "1"}
        with pytest.raises(ApiError) as caught:
            await client.replace(CONFIG_MAPS, replaced)
        assert caught.value.conflict, "it has changed since"
        with pytest.raises(ApiError) as caught:
            await client.delete(CONFIG_MAPS, "a", namespace, uid="of another")
        assert caught.value.conflict
        await client.delete(CONFIG_MAPS, "a", namespace, uid=created["metadata"]["uid"])
        with pytest.raises(ApiError) as caught:
            await client.get(CONFIG_MAPS, "a", namespace)
        assert caught.value.not_found
        assert str(caught.value) == 'configmaps "a" not found'

    async def test_server_side_apply_leaves_the_fields_of_others(self, access: Access, namespace: str) -> None:
        async with Client(access, "one") as one, Client(access, "two") as two:
            await one.apply(CONFIG_MAPS, config_map(namespace, "a", mine="1"))
            await two.apply(CONFIG_MAPS, config_map(namespace, "a", theirs="1"))
            await one.apply(CONFIG_MAPS, config_map(namespace, "a", other="2"))
            assert (await one.get(CONFIG_MAPS, "a", namespace))["data"] == {"theirs": "1", "other": "2"}
            patched = await two.patch(CONFIG_MAPS, "a", namespace, {"data": {"n": "1"}})
        written = patched["metadata"]["managedFields"]
        assert [entry["manager"] for entry in written if entry["operation"] == "Update"] == ["two"], "the same name"

    async def test_a_mistake_is_one_sentence_that_names_the_field(self, client: Client, namespace: str) -> None:
        with pytest.raises(ApiError) as caught:
            await client.create(CONFIG_MAPS, config_map(namespace, "No Name"), namespace)
        assert "metadata.name" in str(caught.value)
        assert caught.value.details["name"] == "No Name"


class TestLists:
    async def test_pages_together_are_the_collection(
        self, client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE_LIMIT", 2)
        await create(client, namespace, *"abcde")
        path, fields = CONFIG_MAPS.path(namespace), "metadata.name!=kube-root-ca.crt"
        pages = [page async for page in client.pages(path, fields=fields)]
        assert len(pages) >= 3
        names = [item["metadata"]["name"] for item in await client.items(path, fields=fields)]
        assert [name for name in names if len(name) == 1] == list("abcde")


class TestFollowing:
    async def test_a_change_is_heard_within_a_second(self, client: Client, namespace: str) -> None:
        """The watch itself tells it; a relist would take longer than any pause."""
        received: asyncio.Queue[str] = asyncio.Queue()

        async def follow() -> None:
            async for news in Reflector(client, CONFIG_MAPS.path(namespace), _own, fields=_OWN).changes():
                received.put_nowait("listed" if isinstance(news, Listed) else news.item)

        task = asyncio.create_task(follow())
        async with asyncio.timeout(LIMIT_S):
            assert await received.get() == "listed"
        for name in ("first", "second"):
            # The first one also shows that the watch stands.
            await create(client, namespace, name)
            async with asyncio.timeout(LIMIT_S if name == "first" else 1):
                assert await received.get() == name
        task.cancel()


_OWN = "metadata.name!=kube-root-ca.crt"


def _own(obj: dict[str, Any]) -> str | None:
    name = str(obj["metadata"]["name"])
    return None if "ca.crt" in name else name


@pytest.fixture
async def credentials(access: Access) -> dict[str, str]:
    """The administrator's, as a plugin gives them."""
    token = access.token if access.plugin is None else (await access.plugin.run()).token
    if token is not None:
        return {"token": token}
    assert access.certificate is not None
    assert access.key is not None
    return {"clientCertificateData": access.certificate.decode(), "clientKeyData": access.key.decode()}


def anonymous(access: Access) -> Access:
    return Access(access.server, ca=access.ca, insecure=access.insecure, server_name=access.server_name)


class TestCredentials:
    async def test_a_token_that_nobody_accepts_is_one_sentence(self, access: Access, namespace: str) -> None:
        async with Client(replace(anonymous(access), token="expired"), "contract") as client:
            with pytest.raises(ApiError, match="does not accept the credentials: renew them"):
                await client.get(PODS, "a", namespace)

    async def test_a_kubeconfig_with_a_plugin_serves_the_operator(
        self, kubeconfig: str, access: Access, credentials: dict[str, str], namespace: str, tmp_path: Path
    ) -> None:
        """The whole path from the file is tested; kubectl reads the same one."""
        path = plugin_kubeconfig(kubeconfig, tmp_path, credentials)
        async with Client(from_kubeconfig(path), "contract") as client:
            await create(client, namespace, "a")


def plugin_kubeconfig(kubeconfig: str, folder: Path, credentials: dict[str, str]) -> Path:
    """A copy of a kubeconfig whose user is known to a program alone."""
    config = yaml.safe_load(Path(kubeconfig).read_text())
    program = folder / "get-credentials"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": credentials}
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(answer)!r})\n")
    program.chmod(0o700)
    entry = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./get-credentials",
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }
    for user in config["users"]:
        user["user"] = {"exec": entry}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


class TestBlocking:
    def test_code_without_a_loop_reads_writes_and_follows(self, access: Access, namespace: str) -> None:
        kube = Blocking(access, "contract")
        try:
            kube.call(lambda client: create(client, namespace, "a"))
            changes = kube.iterate(
                lambda client: Reflector(client, CONFIG_MAPS.path(namespace), _own, fields=_OWN).changes(), LIMIT_S
            )
            assert next(changes).items == ["a"]  # type: ignore[union-attr]
            kube.call(lambda client: create(client, namespace, "b"))
            change = next(changes)
            assert isinstance(change, Changed)
            assert (change.kind, change.item) == ("ADDED", "b")
            changes.close()
            with pytest.raises(ApiError, match="not found"):
                kube.call(lambda client: client.get(PODS, "none", namespace))
        finally:
            kube.close()

    def test_time_that_is_over_ends_what_is_followed(self, access: Access, namespace: str) -> None:
        kube = Blocking(access, "contract")
        try:
            path = CONFIG_MAPS.path(namespace)
            news = kube.iterate(lambda client: Reflector(client, path, _own, fields=_OWN).changes(), 1.0)
            assert [type(one) for one in news] == [Listed]
            kube.call(lambda client: create(client, namespace, "a"))
        finally:
            kube.close()

    def test_a_process_that_ends_says_nothing(self, kubeconfig: str) -> None:
        """An event loop that nobody closed would complain, where all warnings are shown."""
        program = (
            "from longshore_kube.access import load\nfrom longshore_kube.blocking import Blocking\n"
            "kube = Blocking(load(), 'contract')\n"
            "print(kube.call(lambda client: client.request('GET', '/version'))['major'])\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "always::ResourceWarning", "-c", program],
            env=os.environ | {"KUBECONFIG": kubeconfig},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout.strip(), done.stderr) == ("1", "")
