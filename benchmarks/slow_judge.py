"""Serve a judge as a remote endpoint: each answer takes a fixed time, and its grade is a function of the question."""

import contextlib
import http.server
import json
import threading
import time
import zlib
from collections.abc import Iterator


@contextlib.contextmanager
def slow_judge(seconds: float) -> Iterator[str]:
    """Serve chat completions within the block; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            question = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(seconds)  # It thinks elsewhere, and takes nothing of this machine.
            content = f"Score: {zlib.crc32(question) % 11}"
            body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing: requests are not logged."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="judge", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
