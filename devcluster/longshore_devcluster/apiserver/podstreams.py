"""Logs, exec and port-forward of pods: passed on to the kubelet."""

from collections.abc import AsyncIterator
from typing import Protocol

from aiohttp import web

from longshore_devcluster.apiserver.call import Call
from longshore_devcluster.apiserver.errors import ApiError, bad_request, internal
from longshore_devcluster.apiserver.objects import Objects
from longshore_devcluster.apiserver.request import is_true
from longshore_devcluster.apiserver.rest import STREAMING
from longshore_devcluster.apiserver.schema.node import Object

_EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_FORWARD_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
"""SPDY in the messages of a websocket: what kubectl asks for since 1.31; older ones upgrade to SPDY itself."""


class PodStreams(Protocol):
    """What the kubelet offers."""

    def logs(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        tail_lines: int | None,
        since_seconds: int | None,
        limit_bytes: int | None,
        timestamps: bool,
        previous: bool,
    ) -> AsyncIterator[bytes]:
        """Return the lines of a container. Raises LookupError, which says why, where there are none."""

    async def exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: list[str],
        ws: web.WebSocketResponse,
        *,
        stdin: bool,
    ) -> None:
        """Run a command; ``ws`` speaks the channel protocol (first byte of each message: the channel)."""

    async def forward_ports(self, namespace: str, pod: str, ws: web.WebSocketResponse) -> None:
        """Carry connections to ports of a pod; ``ws`` speaks SPDY in its messages."""


def _container(pod: Object, asked: str) -> str:
    """Return the container meant. Raises 400 as the real server does."""
    name = pod["metadata"]["name"]
    names = [c["name"] for c in pod["spec"]["containers"]]
    inits = [c["name"] for c in pod["spec"].get("initContainers") or ()]
    if asked:
        if asked not in (*names, *inits):
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    annotated = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if annotated in names:
        return str(annotated)
    if len(names) > 1:
        choice = f"choose one of: [{' '.join(names)}]"
        more = f" or one of the init containers: [{' '.join(inits)}]" if inits else ""
        raise bad_request(f"a container name must be specified for pod {name}, {choice}{more}")
    return str(names[0])


def _number(query: dict[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if text and not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text) if text else None


async def logs(objects: Objects, streams: PodStreams | None, call: Call) -> web.StreamResponse:
    pod = objects.read(call.resource, call.info.namespace, call.info.name)
    container = _container(pod, call.query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)
    if streams is None:
        raise internal("no preferred addresses found; known addresses: []")
    try:
        lines = streams.logs(
            call.info.namespace,
            call.info.name,
            container,
            follow=is_true(call.query.get("follow", "")),
            tail_lines=_number(call.query, "tailLines"),
            since_seconds=_number(call.query, "sinceSeconds"),
            limit_bytes=_number(call.query, "limitBytes"),
            timestamps=is_true(call.query.get("timestamps", "")),
            previous=is_true(call.query.get("previous", "")),
        )
    except LookupError as error:
        raise bad_request(str(error)) from error
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    first = await anext(lines, None)
    await response.prepare(call.http)
    call.http[STREAMING] = True
    try:
        if first is not None:
            await response.write(first)
            async for line in lines:
                await response.write(line)
    except ConnectionResetError:
        pass  # the reader has gone
    return response


def _running(objects: Objects, streams: PodStreams | None, call: Call) -> tuple[Object, PodStreams]:
    """Return a pod that has a node, and the kubelet. Raises 400 and 500 as the real server does."""
    pod = objects.read(call.resource, call.info.namespace, call.info.name)
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {call.info.name} does not have a host assigned")
    if streams is None:
        raise internal("no preferred addresses found; known addresses: []")
    return pod, streams


async def execute(objects: Objects, streams: PodStreams | None, call: Call) -> web.StreamResponse:
    """Serve ``kubectl exec`` over a websocket; SPDY is not spoken."""
    pod, streams = _running(objects, streams, call)
    container = _container(pod, call.query.get("container", ""))
    if is_true(call.query.get("tty", "")):
        raise bad_request("exec has no terminals here; leave -t out")
    if call.http.headers.get("Upgrade", "").lower() != "websocket":
        raise ApiError(400, "BadRequest", "unable to upgrade: only websockets are supported for exec")
    socket = web.WebSocketResponse(protocols=_EXEC_PROTOCOLS)
    await socket.prepare(call.http)
    call.http[STREAMING] = True
    command = call.http.query.getall("command", [])
    stdin = is_true(call.query.get("stdin", ""))
    await streams.exec(call.info.namespace, call.info.name, container, command, socket, stdin=stdin)
    return socket


async def forward_ports(objects: Objects, streams: PodStreams | None, call: Call) -> web.StreamResponse:
    """Serve ``kubectl port-forward`` over a websocket; SPDY without one is not spoken."""
    _, streams = _running(objects, streams, call)
    asked = [one.strip() for one in call.http.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if call.http.headers.get("Upgrade", "").lower() != "websocket" or _FORWARD_PROTOCOL not in asked:
        why = f"unable to upgrade: port-forward is served over websockets with the protocol {_FORWARD_PROTOCOL} only"
        raise ApiError(400, "BadRequest", why)
    socket = web.WebSocketResponse(protocols=(_FORWARD_PROTOCOL,))
    await socket.prepare(call.http)
    call.http[STREAMING] = True
    await streams.forward_ports(call.info.namespace, call.info.name, socket)
    return socket
