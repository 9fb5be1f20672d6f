"""The client for code without an event loop ends whatever it was doing."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from longshore_kube.access import Access
from longshore_kube.blocking import Blocking
from longshore_kube.client import Client

LIMIT_S = 60.0


@pytest.mark.parametrize("num_swallowed", [0, 1, 3])
def test_it_closes_although_a_request_swallows_its_cancellation(num_swallowed: int) -> None:
    """As one does whose answer comes at that very moment."""
    api, has_begun = Blocking(Access("http://localhost:1"), "test"), threading.Event()
    ended: list[bool] = []

    async def stubborn(client: Client) -> None:
        has_begun.set()
        for _ in range(num_swallowed):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        await asyncio.Event().wait()

    def ask() -> None:
        try:
            api.call(stubborn)
        except CancelledError:
            ended.append(True)

    asking, closing = threading.Thread(target=ask, daemon=True), threading.Thread(target=api.close, daemon=True)
    asking.start()
    assert has_begun.wait(LIMIT_S)
    closing.start()
    for thread in (closing, asking):
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "it waits for ever"
    assert ended == [True]
