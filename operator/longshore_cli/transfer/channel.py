"""Standard input and output of a program in a pod, as files, over a websocket."""

import io
import json
import time
from typing import Any, Final

from kubernetes.stream import ws_client
from websocket import WebSocketException

from longshore_cli.client import Kube
from longshore_cli.errors import CliError

FRAME_BYTES: Final = 1 << 16
SILENCE_S: Final = 120.0
"""A copy in which nothing arrives for so long is given up."""


_BROKEN: Final = (WebSocketException, OSError, ValueError, IndexError, TypeError)
"""What the client raises for a connection that ends, or for frames that are none of Kubernetes."""


class Channel:
    """A running program; closed by `finish`, which tells how it ended."""

    def __init__(self, kube: Kube, pod: str, container: str, command: list[str]) -> None:
        """Start `command`.

        Raises:
            CliError: the cluster refuses to run it.
        """
        query = [("container", container), *(("command", word) for word in command)]
        query += [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
        path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/exec"
        _, url, headers, *_ = kube.api.param_serialize("GET", path, {}, query, {}, auth_settings=["BearerToken"])
        settings = kube.api.configuration
        try:
            self._socket: Any = ws_client.WSClient(
                settings, ws_client.get_websocket_url(url), headers, capture_all=False, binary=True
            )
        except (WebSocketException, OSError) as error:
            raise CliError(
                f"The pod {pod} cannot be entered: {error}",
                "Copying needs the right to create pods/exec in the namespace.",
            ) from error
        self._stderr = b""

    def receive(self) -> bytes:
        """The next bytes of standard output; empty at its end.

        Raises:
            CliError: nothing arrived for SILENCE_S, or something that is no stream of a pod.
        """
        while True:
            data = self._read(ws_client.STDOUT_CHANNEL)
            self._stderr += self._read(ws_client.STDERR_CHANNEL)
            if data or not self._socket.is_open():
                return data
            self._wait()

    def send(self, data: bytes) -> None:
        """Bytes for standard input.

        Raises:
            CliError: the program has ended.
        """
        try:
            for start in range(0, len(data), FRAME_BYTES):
                self._socket.write_stdin(data[start : start + FRAME_BYTES])
            self._socket.update(timeout=0)
        except (WebSocketException, OSError) as error:
            raise CliError(f"The copy broke off: {self._message() or error}") from error
        if not self._socket.is_open():
            raise CliError(f"The copy broke off: {self._message()}")

    def finish(self) -> None:
        """Wait for the end of the program.

        Raises:
            CliError: it failed; the sentence is its own.
        """
        while self._socket.is_open():
            self._wait()
        verdict = self._read(ws_client.ERROR_CHANNEL)
        if not verdict:
            raise CliError("The connection to the helper pod was lost.", "Try the copy again.")
        if not _is_success(verdict):
            raise CliError(f"The copy failed: {self._message()}")

    def close(self) -> None:
        """Let go of the connection, which ends the program if it still runs."""
        self._socket.close()

    def _read(self, channel: int) -> bytes:
        try:
            data = self._socket.read_channel(channel, timeout=0)
        except _BROKEN as error:
            raise _broke_off(error) from error
        return data.encode() if isinstance(data, str) else bytes(data)

    def _wait(self) -> None:
        asked_s = time.monotonic()
        try:
            self._socket.update(timeout=SILENCE_S)
        except _BROKEN as error:
            raise _broke_off(error) from error
        if time.monotonic() - asked_s >= SILENCE_S:
            raise CliError("Nothing arrives from the helper pod any more.", "Try the copy again.")

    def _message(self) -> str:
        self._stderr += self._read(ws_client.STDERR_CHANNEL)
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


def _broke_off(error: Exception) -> CliError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return CliError(f"The connection to the helper pod broke off: {reason}.", "Try the copy again.")


def _is_success(verdict: bytes) -> bool:
    try:
        status = json.loads(verdict)
    except ValueError:
        return False
    return isinstance(status, dict) and status.get("status") == "Success"


class Reader(io.RawIOBase):
    """Standard output of a channel as a file."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        assert size >= 0, "a stream is read in pieces"
        parts, missing = [self._pending], size - len(self._pending)
        while missing > 0 and (data := self._channel.receive()):
            parts.append(data)
            missing -= len(data)
        joined = b"".join(parts)
        self._pending = joined[size:]
        return joined[:size]


class Writer(io.RawIOBase):
    """Standard input of a channel as a file."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._channel.send(bytes(data))
        return len(data)
