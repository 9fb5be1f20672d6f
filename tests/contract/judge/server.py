"""A real HTTP server with the two interfaces of OpenAI that a judge may have, and the ways in which one can fail."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

Complete = Callable[[Sequence[str], int], Sequence[object]]


@dataclass
class Answer:
    """What the server says to a request."""

    status: int = 200
    body: bytes | None = None
    """Body that is sent; None: a completion."""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    """Say nothing until the server is closed."""


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    authorization: str | None
    body: dict[str, Any]


class JudgeServer:
    """Listens on a free port; `answers` come first, one per request, and completions of `complete` after them."""

    def __init__(self, complete: Complete) -> None:
        self.answers: list[Answer] = []
        self.received: list[Received] = []
        self.was_asked = threading.Event()
        self.meeting: threading.Barrier | None = None
        """Requests that wait for each other; None: they do not."""
        self.most_at_once = 0
        self._at_once = 0
        self._complete = complete
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        """Up to and including /v1."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, received: Received) -> Answer:
        with self._lock:
            self.received.append(received)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            answer = self.answers.pop(0) if self.answers else Answer()
        self.was_asked.set()
        if self.meeting is not None:
            self.meeting.wait(30)
        if answer.hangs:
            self._closing.wait()
        with self._lock:
            if answer.body is None:
                answer.body = self._completion(received)
            self._at_once -= 1
        return answer

    def _completion(self, received: Received) -> bytes:
        body, is_chat = received.body, received.path.endswith("/chat/completions")
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        (reply,) = self._complete([prompt], body["max_tokens"])
        choice = {"message": {"role": "assistant", "content": reply}} if is_chat else {"text": reply}
        return orjson.dumps({"object": "completion", "choices": [choice | {"index": 0, "finish_reason": "stop"}]})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = server.answer(Received(self.path, self.headers["Authorization"], body))
                assert answer.body is not None
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                except ConnectionError:
                    return  # The client has given up.

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return Handler
