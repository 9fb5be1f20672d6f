"""The main program of every pod."""

import os
import signal
from collections.abc import Iterator

import pytest

from longshore.api.contract import ExitCode
from longshore_runtime import __main__ as program


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_pod_that_is_asked_to_stop_before_its_component_has_begun_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first process of its container it would not get a signal without a handler, and go on."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(program, "configure_logging", Forgotten)
    assert program.main([]) == 2
    assert ended == [ExitCode.INTERRUPTED]


class Forgotten:
    """Where Python ignores what the handler of a signal raises, as in callbacks of the imports."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
