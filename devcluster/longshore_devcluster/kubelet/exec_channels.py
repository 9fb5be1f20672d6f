"""The websocket channel protocol of `kubectl exec` and `cp` (v4.channel.k8s.io and v5.channel.k8s.io).

The first byte of a message names its channel: 0 standard input, 1 standard output, 2 standard error, 3 the final
Status as JSON; in version 5, 255 closes the channel that the next byte names.
"""

import asyncio
import json

from aiohttp import WSMsgType, web

from longshore_devcluster.kubelet.containers import ContainerProcess
from longshore_devcluster.kubelet.pipes import Ends, reader_of, writer_of
from longshore_devcluster.kubelet.waiting import first
from longshore_kube.resources import Json

_STDIN, _ERROR, _CLOSE = 0, 3, 255
_BLOCK_BYTES = 32768


async def serve_exec(ws: web.WebSocketResponse, process: ContainerProcess, ends: Ends) -> None:
    """Carry data both ways until the process has ended, then send its status; a client that leaves ends it."""
    # The client waits for a first, empty message before it sends anything.
    await ws.send_bytes(bytes([1]))
    readers = [(number, await reader_of(fd)) for number, fd in ends.from_child]
    outputs = asyncio.gather(*(_send_output(ws, number, reader) for number, reader in readers))
    writer = None if ends.to_child is None else await writer_of(ends.to_child)
    receiver = asyncio.create_task(_receive(ws, writer))
    try:
        await first(process.wait(), asyncio.shield(receiver))
        if not process.ended:
            process.kill()
        code = await process.wait()
        await outputs
        if not ws.closed:
            await ws.send_bytes(bytes([_ERROR]) + json.dumps(exit_status(code)).encode())
    except ConnectionResetError:
        process.kill()
    finally:
        outputs.cancel()
        receiver.cancel()
        await asyncio.gather(outputs, receiver, return_exceptions=True)
        if writer is not None:
            writer.close()


async def refuse_exec(ws: web.WebSocketResponse, message: str) -> None:
    """Tell the client that the command could not be started."""
    status: Json = {
        "metadata": {},
        "status": "Failure",
        "reason": "InternalError",
        "message": message,
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }
    await ws.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())


def exit_status(code: int) -> Json:
    """Return the Status that tells a client how its command ended."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


async def _send_output(ws: web.WebSocketResponse, number: int, reader: asyncio.StreamReader) -> None:
    while True:
        data = await reader.read(_BLOCK_BYTES)
        if not data:
            return
        await ws.send_bytes(bytes([number]) + data)


async def _receive(ws: web.WebSocketResponse, writer: asyncio.StreamWriter | None) -> None:
    """Obey the client until it leaves; an end of standard input alone does not count as leaving."""
    async for message in ws:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == _STDIN and writer is not None and not writer.is_closing():
            await _write(writer, data)
        elif channel == _CLOSE and data[:1] == bytes([_STDIN]) and writer is not None:
            writer.close()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        writer.write(data)
        await writer.drain()
    except (BrokenPipeError, ConnectionResetError):
        # The process has closed its standard input; what it no longer wants is dropped, as on any pipe.
        writer.close()
