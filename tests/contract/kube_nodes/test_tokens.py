"""The tokens of a pod are renewed well before they expire."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longshore_devcluster.apiserver import ApiServer
from longshore_devcluster.kubelet.tokens import TokenRequest, Tokens
from longshore_kube.access import from_kubeconfig
from longshore_kube.client import Client
from longshore_kube.reflector import Changed, Reflector
from longshore_kube.resources import PODS, SERVICE_ACCOUNTS
from tests.contract.kube_nodes.kube import Json


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    async with Client(from_kubeconfig(server.kubeconfig_path), "test") as client:
        await wait_for_default_account(client)
        yield client
    await server.stop()


async def wait_for_default_account(client: Client) -> None:
    async for news in Reflector(client, SERVICE_ACCOUNTS.path("default"), dict).changes():
        if isinstance(news, Changed) or news.items:
            return


async def pod(client: Client) -> Json:
    spec = {"containers": [{"name": "main", "image": "none"}]}
    return await client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")


async def test_token_is_kept_for_most_of_its_life_and_then_renewed(client: Client) -> None:
    start_s = time.time()
    now_s = start_s
    tokens = Tokens(client, lambda: now_s)
    request = TokenRequest(audience="", expiration_s=3600)
    owner = await pod(client)

    first = await tokens.fetch(owner, [request])
    due_s = tokens.renewal_s()
    assert due_s is not None
    assert start_s + 0.7 * 3600 < due_s < start_s + 0.9 * 3600
    now_s = due_s - 1
    kept = await tokens.fetch(owner, [request])
    now_s = due_s + 1
    await tokens.fetch(owner, [request])

    assert kept == first
    renewed_s = tokens.renewal_s()
    assert renewed_s is not None
    assert renewed_s > due_s
