"""Standard input and output of a program in a pod, as files, over a websocket."""

import asyncio
import io
import json
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Any, Final

import aiohttp

from longshore_client.errors import ClientError
from longshore_client.kube import Kube
from longshore_kube.client import Client
from longshore_kube.errors import KubeError
from longshore_kube.resources import PODS

FRAME_BYTES: Final = 1 << 16
SILENCE_S: Final = 120.0
"""A copy in which nothing arrives for so long is given up."""
_PROTOCOL: Final = "v4.channel.k8s.io"


class _Frame(IntEnum):
    """What the first byte of a frame says it is."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    VERDICT = 3


class Channel:
    """A running program; `finish` closes it and returns how it ended."""

    def __init__(self, kube: Kube, pod: str, container: str, command: list[str], what: str = "copy") -> None:
        """Start `command`; `what`: the name of the operation in messages.

        Raises:
            ClientError: the cluster refuses to run it.
        """
        query = [("container", container), *(("command", word) for word in command)]
        query += [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
        path = PODS.path(kube.namespace, pod, "exec")
        self._api = kube.api
        self._what = what
        try:
            self._socket = kube.api.call(lambda client: client.websocket(path, query, (_PROTOCOL,)))
        except KubeError as error:
            raise ClientError(
                f"The pod {pod} cannot be entered: {error}",
                "Copying needs the right to create pods/exec in the namespace.",
            ) from error
        self._stderr = b""
        self._verdict = b""
        self._is_open = True
        self._coming: asyncio.Future[aiohttp.WSMessage] | None = None

    def receive(self) -> bytes:
        """Return the next bytes of standard output; empty at its end.

        Raises:
            ClientError: nothing arrived for SILENCE_S, or something that is no stream of a pod.
        """
        while self._is_open:
            if data := self._take():
                return data
        return b""

    def send(self, data: bytes) -> None:
        """Send bytes for standard input.

        Raises:
            ClientError: the program has ended.
        """
        try:
            for start in range(0, len(data), FRAME_BYTES):
                frame = bytes([_Frame.STDIN]) + data[start : start + FRAME_BYTES]
                if self._api.call(partial(self._write, frame), SILENCE_S):
                    self._take()
                if not self._is_open:
                    raise ClientError(f"The {self._what} broke off: {self._message() or 'the program has ended'}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            with suppress(ClientError):
                # What the program said before it ended is still on its way.
                self.receive()
            raise ClientError(
                f"The {self._what} broke off: {self._message() or error or 'nothing is taken any more'}"
            ) from error

    def finish(self) -> None:
        """Wait for the end of the program.

        Raises:
            ClientError: it failed; the sentence is its own.
        """
        while self.receive():
            pass
        if not self._verdict:
            raise ClientError("The connection to the helper pod was lost.", f"Try the {self._what} again.")
        if not _is_success(self._verdict):
            raise ClientError(f"The {self._what} failed: {self._message() or 'no reason given'}")

    def close(self) -> None:
        """Let go of the connection, which ends the program if it still runs."""
        self._api.call(lambda _: self._socket.close())

    def _take(self) -> bytes:
        """Wait for one frame, and return what it has of standard output."""
        try:
            message = self._api.call(self._next, SILENCE_S)
        except TimeoutError as error:
            raise ClientError(
                "Nothing arrives from the helper pod any more.", f"Try the {self._what} again."
            ) from error
        if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
            self._is_open = False
            return b""
        frame = message.data.encode() if isinstance(message.data, str) else message.data
        if not isinstance(frame, bytes) or not frame[:1]:
            self._is_open = False
            reason = " ".join(str(message.data).split()) or message.type.name
            raise ClientError(f"The connection to the helper pod broke off: {reason}.", f"Try the {self._what} again.")
        match frame[0]:
            case _Frame.STDOUT:
                return frame[1:]
            case _Frame.STDERR:
                self._stderr += frame[1:]
            case _Frame.VERDICT:
                self._verdict += frame[1:]
        return b""

    async def _next(self, _: Client) -> aiohttp.WSMessage:
        message = await asyncio.shield(self._begun())
        self._coming = None
        return message

    async def _write(self, frame: bytes, _: Client) -> bool:
        """Return whether something has arrived meanwhile, as the end of the program."""
        coming = self._begun()
        await self._socket.send_bytes(frame)
        return coming.done()

    def _begun(self) -> "asyncio.Future[aiohttp.WSMessage]":
        """Return the next frame, which is waited for from the first call on."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._socket.receive())
        return self._coming

    def _message(self) -> str:
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _is_success(verdict: bytes) -> bool:
    with suppress(ValueError, AttributeError):
        return bool(json.loads(verdict).get("status") == "Success")
    return False


class Reader(io.RawIOBase):
    """Standard output of a channel; wrap it in a `BufferedReader` to read an exact number of bytes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._pending or self._channel.receive()
        size = min(len(buffer), len(data))
        buffer[:size], self._pending = data[:size], data[size:]
        return size


class Writer(io.RawIOBase):
    """Standard input of a channel as a file."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._channel.send(bytes(data))
        return len(data)
