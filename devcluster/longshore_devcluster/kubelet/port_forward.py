"""`kubectl port-forward`: connections of the client, carried to ports of a pod.

The client opens two streams for each connection: `error`, on which we write why it failed, and `data`. Both name the
connection (`requestid`) and the port. The streams are those of SPDY, in messages of a websocket.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from longshore_devcluster.kubelet.spdy import Data, FrameReader, FrameWriter, Opened, Ping, Reset

_BLOCK_BYTES = 32768
_MAX_QUEUED_BLOCKS = 64

Send = Callable[[bytes], Awaitable[None]]


@dataclass
class _Connection:
    """One connection of the client: its two streams, and what it has sent and the pod has not had yet."""

    port: int
    error_stream: int = 0
    data_stream: int = 0
    task: asyncio.Task[None] | None = None
    given_up: bool = False
    sent: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_MAX_QUEUED_BLOCKS))


class Forwarder:
    """The connections of one client to one pod."""

    def __init__(self, pod: str, address: str, send: Send) -> None:
        self._pod, self._address, self._send = pod, address, send
        self._reader, self._writer = FrameReader(), FrameWriter()
        self._connections: dict[str, _Connection] = {}
        self._by_stream: dict[int, _Connection] = {}

    async def feed(self, data: bytes) -> None:
        """Obey what the client sent. Errors: ValueError for what is no SPDY."""
        for event in self._reader.feed(data):
            match event:
                case Opened(stream, headers):
                    await self._open(stream, headers)
                case Data(stream, block, is_last):
                    await self._take(stream, block, is_last)
                case Reset(stream):
                    self._end(stream)
                case Ping(frame):
                    await self._send(frame)

    async def close(self) -> None:
        """End every connection: the client has gone."""
        tasks = [one.task for one in self._connections.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self, stream: int, headers: dict[str, str]) -> None:
        name, kind, port = headers.get("requestid", ""), headers.get("streamtype"), headers.get("port", "")
        if kind not in ("error", "data") or not port.isdigit():
            raise ValueError(f"a stream needs a streamtype and a port, not {headers}")
        connection = self._connections.setdefault(name, _Connection(int(port)))
        await self._send(self._writer.reply(stream))
        if kind == "error":
            connection.error_stream = stream
        else:
            connection.data_stream = stream
            self._by_stream[stream] = connection
        if connection.error_stream and connection.data_stream:
            connection.task = asyncio.create_task(self._carry(name, connection))

    async def _take(self, stream: int, block: bytes, is_last: bool) -> None:
        connection = self._by_stream.get(stream)
        if connection is None:
            return  # of an error stream, on which a client says nothing, or of a connection that has ended
        for one in [*([block] if block else []), *([None] if is_last else [])]:
            await _put(connection, one)

    def _end(self, stream: int) -> None:
        connection = self._by_stream.get(stream)
        if connection is not None and connection.task is not None:
            connection.given_up = True
            connection.task.cancel()

    async def _carry(self, name: str, connection: _Connection) -> None:
        """Carry bytes both ways until both sides have said their last; the reason goes where it did not work."""
        why = b""
        try:
            why = await self._connect_and_carry(connection)
        except asyncio.CancelledError:
            if not connection.given_up:
                raise
        finally:
            self._by_stream.pop(connection.data_stream, None)
            self._connections.pop(name, None)
        await self._send(self._writer.data(connection.data_stream, b"", is_last=True))
        await self._send(self._writer.data(connection.error_stream, why, is_last=True))

    async def _connect_and_carry(self, connection: _Connection) -> bytes:
        """Return why it did not work; nothing when it did."""
        try:
            reader, writer = await asyncio.open_connection(self._address, connection.port)
        except OSError as error:
            return (
                f"error forwarding port {connection.port} to pod {self._pod}: "
                f"failed to connect to {self._address}:{connection.port}: {error.strerror or error}"
            ).encode()
        upwards = asyncio.create_task(_write_all(connection.sent, writer))
        try:
            await self._send_all(connection.data_stream, reader)
        finally:
            upwards.cancel()
            await asyncio.gather(upwards, return_exceptions=True)
            writer.close()
        return b""

    async def _send_all(self, stream: int, reader: asyncio.StreamReader) -> None:
        # The program may end its side harshly: for the client that is an end like another.
        with suppress(ConnectionResetError):
            while block := await reader.read(_BLOCK_BYTES):
                await self._send(self._writer.data(stream, block))


async def _put(connection: _Connection, block: bytes | None) -> None:
    """Wait for room, which a connection that has ended will never have."""
    put = asyncio.create_task(connection.sent.put(block))
    ends = {connection.task} if connection.task is not None else set()
    await asyncio.wait({put, *ends}, return_when=asyncio.FIRST_COMPLETED)
    put.cancel()


async def _write_all(blocks: "asyncio.Queue[bytes | None]", writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError, BrokenPipeError):
        while (block := await blocks.get()) is not None:
            writer.write(block)
            await writer.drain()
        writer.write_eof()


async def forward(ws: web.WebSocketResponse, pod: str, address: str) -> None:
    """Serve a websocket whose messages are SPDY, until the client leaves."""

    async def send(frame: bytes) -> None:
        with suppress(ConnectionResetError):
            await ws.send_bytes(frame)

    forwarder = Forwarder(pod, address, send)
    try:
        async for message in ws:
            if message.type is WSMsgType.BINARY:
                await forwarder.feed(message.data)
    except ValueError as error:
        await ws.close(code=1002, message=str(error).encode()[:120])
    finally:
        await forwarder.close()
