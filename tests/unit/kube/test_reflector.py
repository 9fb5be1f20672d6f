"""How long a server has been away is counted from when it was last there, and not from when it last said something."""

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from longshore_kube import reflector as module
from longshore_kube.errors import KubeError, Unreachable
from longshore_kube.reflector import Reflector

GONE = Unreachable("the server is gone")


class QuietServer:
    """A client of a server whose watches are quiet for some seconds and then break, or are not accepted at all."""

    def __init__(self, quiet_s: list[float | None]) -> None:
        self.now_s = 0.0
        self._quiet_s = quiet_s

    async def pages(self, path: str, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """An empty list."""
        yield {"items": [], "metadata": {"resourceVersion": "1"}}

    async def watch(
        self, path: str, version: str, *, on_accepted: Callable[[], None], **options: Any
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Nothing, and then an error; a try that is not accepted takes ten seconds."""
        quiet_s = self._quiet_s.pop(0)
        if quiet_s is not None:
            on_accepted()
        self.now_s += 10.0 if quiet_s is None else quiet_s
        raise GONE
        yield

    async def sleep(self, delay_s: float) -> None:
        """Pass the time."""


@pytest.mark.parametrize(
    ("quiet_s", "silences_s"),
    [
        ([300.0, None, None], [0.0, 10.0, 20.0]),
        ([None, None, 300.0, None], [10.0, 20.0, 0.0, 10.0]),
        ([1.0, 1.0, None], [1.0, 1.0, 11.0]),
    ],
    ids=["after a quiet watch", "again after a quiet watch", "watches that break at once"],
)
async def test_a_quiet_watch_is_no_silence_of_the_server(
    quiet_s: list[float | None], silences_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = QuietServer(quiet_s)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: server.now_s))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=server.sleep))
    found: list[float] = []

    def remember(error: KubeError, silence_s: float) -> None:
        found.append(silence_s)
        if len(found) == len(silences_s):
            raise error

    with pytest.raises(Unreachable):
        async for _ in Reflector(server, "/api/v1/pods", dict, on_error=remember).changes():  # type: ignore[arg-type]
            pass
    assert found == silences_s
