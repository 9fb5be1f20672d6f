"""A real HTTP server: a scoring service and a judge in one, which does what the request asks for."""

import contextlib
import gzip
import http.server
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

TOKEN: Final = "let-me-in"
_SCORE: Final = b'{"reward": 1}'
_LONG: Final = b'{"reward": 1, "x": "%s"}' % (b"a" * (4 << 20))
BODIES: Final = {
    "gzip": gzip.compress(_SCORE),
    "deflate": zlib.compress(_SCORE),
    "gzip,long": gzip.compress(_LONG),
    "gzip,cut": gzip.compress(_SCORE)[:-9],
    "gzip,plain": _SCORE,
    "br": _SCORE,
    "identity,long": _LONG,
    "identity,deep": b'{"reward": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "identity,digits": b'{"reward": ' + b"9" * 5_000 + b"}",
    "identity,binary": b"\xff\xfe\x00",
    "identity,empty": b"",
}
"""Answers by their Content-Encoding and what is special about them."""


@dataclass(frozen=True)
class Reply:
    """What goes back; `hangs`: nothing does, until the server stops; `trickles`: one byte, and then nothing.

    `body` is sent as it is if it is bytes, and otherwise as JSON.
    """

    status: int = 200
    body: Any = None
    hangs: bool = False
    trickles: bool = False
    encoding: str | None = None
    """Header Content-Encoding."""


Behaviour = Callable[[str, dict[str, Any]], Reply]


@dataclass
class Endpoint:
    """A server that runs."""

    address: str
    """Scheme, host and port."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of all requests, in order."""


def service(path: str, body: dict[str, Any]) -> Reply:
    """Scores as the response says; `/v1/...` is a judge who likes responses that are correct."""
    if path.endswith("/chat/completions"):
        return _judge(body["messages"][0]["content"])
    match body["response"].split():
        case ["status", status]:
            return Reply(int(status), {"reward": 1.0})
        case ["body", *words]:
            return Reply(200, json.loads(" ".join(words)))
        case ["bytes", encoding]:
            return Reply(200, BODIES[encoding], encoding=encoding.partition(",")[0])
        case ["hang"]:
            return Reply(hangs=True)
        case ["trickle"]:
            return Reply(trickles=True)
    return Reply(200, {"reward": float(body["response"] == body["answer"])})


def _judge(question: str) -> Reply:
    if "never ends" in question:
        return Reply(hangs=True)
    if "status 500" in question:
        return Reply(500, {"error": "overloaded"})
    reply = "nonsense" if "confuse" in question else f"Score: {10 if 'Response: right' in question else 0}"
    return Reply(200, {"choices": [{"message": {"content": reply}}]})


@contextlib.contextmanager
def serving(behaviour: Behaviour = service, token: str | None = None) -> Iterator[Endpoint]:
    """A server on a free port of this machine; with `token` it refuses who does not bear it."""
    over = threading.Event()
    endpoint = Endpoint("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.requests.append(body)
            if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
                self._answer(Reply(401, {"error": "who are you?"}))
            else:
                self._answer(behaviour(self.path, body))

        def _answer(self, reply: Reply) -> None:
            if reply.trickles:
                self.wfile.write(b"H")
            if reply.hangs or reply.trickles:
                over.wait()
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            if reply.encoding is not None:
                self.send_header("Content-Encoding", reply.encoding)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # A client may take no more.
                self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield endpoint
    finally:
        over.set()
        server.shutdown()
        server.server_close()
