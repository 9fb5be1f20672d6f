"""The server as a whole: files, tokens, restarts, the kubelet's streams."""

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from longshore_devcluster.apiserver import ApiServer
from longshore_devcluster.apiserver.access.jwt import BadToken, Signer


def _token(server: ApiServer) -> str:
    config: Any = yaml.safe_load(server.kubeconfig_path.read_text())
    return str(config["users"][0]["user"]["token"])


def _session(server: ApiServer, token: str) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cadata=server.ca_pem)
    headers = {"Authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(ssl=context))


async def test_secrets_are_private_files(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "data")
    await server.start()
    try:
        private = ["kubeconfig", "tokens.json", "pki/ca.key", "pki/server.key", "pki/service-accounts.key"]
        modes = {name: stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) for name in private}
        assert set(modes.values()) == {0o600}, modes
    finally:
        await server.stop()


def test_a_token_is_only_valid_as_signed() -> None:
    signer = Signer(ec.generate_private_key(ec.SECP256R1()))
    token = signer.sign({"sub": "a"})
    assert signer.verify(token) == {"sub": "a"}
    header, claims, signature = token.split(".")
    unsigned = jwt.encode({"sub": "a"}, key=None, algorithm="none")
    for forged in (f"{header}.{claims}.{signature[::-1]}", f"{header}.{claims[:-2]}.{signature}", unsigned, "x", ""):
        with pytest.raises(BadToken):
            signer.verify(forged)
    with pytest.raises(BadToken):
        Signer(ec.generate_private_key(ec.SECP256R1())).verify(token)


async def test_a_restart_finds_the_cluster_as_it_was(tmp_path: Path) -> None:
    first = ApiServer(tmp_path)
    await first.start()
    token, path = _token(first), "/api/v1/namespaces/default/configmaps"
    async with _session(first, token) as session, session.post(path, json={"metadata": {"name": "a"}}) as answer:
        before = (await answer.json())["metadata"]
    await first.stop()
    second = ApiServer(tmp_path)
    await second.start()
    try:
        assert _token(second) == token and second.ca_pem == first.ca_pem
        async with _session(second, token) as session:
            async with session.get(f"{path}/a") as answer:
                assert (await answer.json())["metadata"] == before
            query = {"watch": "true", "resourceVersion": str(int(before["resourceVersion"]) - 1), "timeoutSeconds": "1"}
            async with session.get(path, params={**query, "fieldSelector": "metadata.name=a"}) as answer:
                assert b'"type":"ADDED"' in await answer.content.readline()
    finally:
        await second.stop()


async def test_components_have_the_rights_they_need(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    try:
        async with _session(server, server.component_token("system:kube-scheduler")) as session:
            async with session.get("/api/v1/pods") as answer:
                assert answer.status == 200
            async with session.get("/api/v1/secrets") as answer:
                assert answer.status == 403
        node_session = _session(server, server.component_token("system:node"))
        node = {"metadata": {"name": "n"}}
        async with node_session as session, session.post("/api/v1/nodes", json=node) as answer:
            assert answer.status == 201
    finally:
        await server.stop()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


async def _bound_pod(session: aiohttp.ClientSession) -> str:
    path = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": False}
    async with session.post(path, json={"metadata": {"name": "p"}, "spec": spec}) as answer:
        assert answer.status == 201, await answer.text()
    async with session.post(f"{path}/p/binding", json={"target": {"name": "n"}}) as answer:
        assert answer.status == 201
    return f"{path}/p"


async def test_logs_without_a_kubelet_and_of_an_unknown_container_are_refused(server: ApiServer) -> None:
    async with _session(server, _token(server)) as session:
        path = await _bound_pod(session)
        async with session.get(f"{path}/log") as answer:
            assert answer.status == 500
        async with session.get(f"{path}/log", params={"container": "x"}) as answer:
            assert answer.status == 400
            assert (await answer.json())["message"] == "container x is not valid for pod p"


class _BrokenStreams:
    async def logs(self, *where: str, **options: Any) -> AsyncIterator[bytes]:
        yield b"one\n"
        raise OSError("the disk is gone")


async def test_a_stream_that_breaks_is_cut_and_the_server_lives_on(server: ApiServer) -> None:
    server.set_pod_streams(_BrokenStreams())  # type: ignore[arg-type]
    async with _session(server, _token(server)) as session:
        path = await _bound_pod(session)
        with pytest.raises(aiohttp.ClientError):
            async with session.get(f"{path}/log") as answer:
                await answer.read()
        async with session.get(path) as answer:
            assert answer.status == 200


async def test_a_watch_ends_when_its_client_goes(server: ApiServer) -> None:
    async with _session(server, _token(server)) as session, session.get("/api/v1/pods", params={"watch": "true"}):
        watching = {task for task in asyncio.all_tasks() if "RequestHandler" in repr(task.get_coro())}
        assert watching
    await asyncio.wait(watching, timeout=20)
    assert all(task.done() for task in watching)
