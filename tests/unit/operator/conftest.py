"""Decisions are tested as functions: a test here that starts a process or opens a connection fails."""

import sys
from collections.abc import Iterator

import pytest

_FORBIDDEN = {"socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
_seen: list[str] | None = None
"""What a test did that it must not do; None between tests."""


def _watch(event: str, _: tuple[object, ...]) -> None:
    if _seen is not None and event in _FORBIDDEN:
        _seen.append(event)


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def neither_processes_nor_network() -> Iterator[None]:
    global _seen
    _seen = []
    yield
    seen, _seen = _seen, None
    assert not seen, f"a unit test of the operator used {', '.join(seen)}"
