"""What no unit test may do: start a process, or reach for anything beyond the loopback of this machine."""

import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_PROCESSES: Final = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "pty.spawn",
        "subprocess.Popen",
    }
)
_CONNECTIONS: Final = frozenset({"socket.connect", "socket.sendmsg", "socket.sendto"})
_LOOKUPS: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})


class Forbidden(RuntimeError):
    """A unit test does what belongs into a contract test."""


class Guard:
    """Watches the interpreter, in every thread, while a unit test runs."""

    def __init__(self) -> None:
        self._is_watching = False
        self._found: list[str] = []
        sys.addaudithook(self._audit)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Forbid it within the block; raises Forbidden at its end also where the code swallowed the exception."""
        was_watching, self._is_watching = self._is_watching, True
        try:
            yield
        finally:
            self._is_watching = was_watching
            found, self._found = self._found, []
        if found:
            raise Forbidden(f"a unit test {'; '.join(found)}: such a test belongs into tests/contract")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_watching and (what := forbidden(event, arguments)):
            self._found.append(what)
            raise Forbidden(f"a unit test {what}")


def forbidden(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What an audit event tells of, if a unit test may not do it."""
    if event in _PROCESSES and not _lists_fonts(event, arguments):
        return f"starts a process ({event} {arguments[:2]!r})"
    if event in _CONNECTIONS and not _is_local(_host(arguments[1])):
        return f"connects to {arguments[1]!r}"
    if event in _LOOKUPS and not _is_local(arguments[0]):
        return f"looks up {arguments[0]!r}"
    return None


def _lists_fonts(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether it is what matplotlib does on a machine, once, before it draws for the first time."""
    return event == "subprocess.Popen" and "fc-list" in arguments[1]


def _host(address: object) -> object:
    """Host of an internet address; None for sockets of the file system, which have none."""
    return address[0] if isinstance(address, tuple) else None


def _is_local(host: object) -> bool:
    if isinstance(host, bytes | bytearray):
        host = bytes(host).decode(errors="replace")
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
