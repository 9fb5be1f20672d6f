"""A unit test that starts a process or reaches for the network fails."""

import contextlib
import multiprocessing
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import GUARD
from tests.unit.guard import Forbidden, forbidden

ELSEWHERE = ("192.0.2.1", 80)
"""Of a network that is reserved for documentation."""


def fork() -> None:
    process = multiprocessing.get_context("fork").Process(target=print)
    process.start()


def connect() -> None:
    with socket.socket() as client:
        client.connect(ELSEWHERE)


def send() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.sendto(b"", ELSEWHERE)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: subprocess.run([sys.executable, "-c", ""], check=False), "starts a process"),
        (lambda: os.system("true"), "starts a process"),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), "starts a process"),
        (fork, "starts a process"),
        (connect, "connects to"),
        (send, "connects to"),
        (lambda: socket.getaddrinfo("example.invalid", 443), "looks up 'example.invalid'"),
    ],
    ids=["subprocess", "system", "posix_spawn", "fork", "connect", "send", "look-up"],
)
@pytest.mark.parametrize("is_swallowed", [False, True])
def test_what_no_unit_test_may_do_is_stopped_and_fails_it(
    act: Callable[[], Any], message: str, is_swallowed: bool
) -> None:
    swallowed = contextlib.suppress(Exception) if is_swallowed else contextlib.nullcontext()
    with pytest.raises(Forbidden, match=message), GUARD.watching(), swallowed:
        act()


def test_servers_of_the_test_itself_may_be_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(("localhost", server.getsockname()[1])),
    ):
        pass


@pytest.mark.parametrize(
    ("host", "is_forbidden"),
    [("127.66.0.2", False), ("::1", False), ("localhost", False), (b"::1", False), ("10.0.0.1", True), ("::", True)],
)
def test_only_loopback_is_local(host: str, is_forbidden: bool) -> None:
    assert (forbidden("socket.connect", (None, (host, 80))) is not None) is is_forbidden


def test_sockets_of_the_file_system_are_local() -> None:
    assert forbidden("socket.connect", (None, "/run/some.sock")) is None


def test_no_unit_test_imports_what_takes_seconds_to_import() -> None:
    heavy = re.compile(r"^\s*(?:from|import) (?:megatron|torch|transformers|vllm)\b", re.MULTILINE)
    files = list(Path(__file__).parent.rglob("*.py"))
    assert files
    assert [file.name for file in files if heavy.search(file.read_text())] == []
