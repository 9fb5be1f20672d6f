"""An agent that attacks what it can reach, one attack for each episode."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

ASK: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "2+3?"}]}
TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def nested(num_levels: int) -> dict[str, Any]:
    """Return a schema of so many levels."""
    schema: dict[str, Any] = {}
    for _ in range(num_levels):
        schema = {"not": schema}
    return schema


BODIES: Final[dict[str, Any]] = {
    "no messages": {},
    "a list": [],
    "messages of another type": {"messages": "hello"},
    "no role": {"messages": [{"content": "x"}]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    "a role of another type": {"messages": [{"role": ["user"], "content": "x"}]},
    "a deep schema": ASK | {"tools": [{**TOOL, "function": {"name": "f", "parameters": nested(900)}}]},
    "a result of no call": {"messages": [{"role": "tool", "tool_call_id": "x", "content": "5"}]},
    "more messages than there may be": {"messages": [{"role": "user", "content": "x"}] * 5000},
    "more tools than there may be": ASK | {"tools": [TOOL] * 300},
    "large tools": ASK | {"tools": [{**TOOL, "function": {**TOOL["function"], "description": "x" * 300_000}}]},  # type: ignore[dict-item]
    "a long message": {"messages": [{"role": "user", "content": "x" * 2_000_000}]},
    "half a character": {"messages": [{"role": "user", "content": "\ud800"}]},
    "several answers": ASK | {"n": 4},
    "a forced tool": ASK | {"tools": [TOOL], "tool_choice": "required"},
    "a format": ASK | {"response_format": {"type": "json_object"}},
    "no tokens": ASK | {"max_tokens": 0},
    "a stop text of another type": ASK | {"stop": [5]},
    "more stop texts than there may be": ASK | {"stop": ["x"] * 100},
}


def post(path: str, body: bytes, key: str | None = None) -> int:
    """Post, and return the status."""
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    key = os.environ["OPENAI_API_KEY"] if key is None else key
    connection.request("POST", url.path + path, body, {"Authorization": f"Bearer {key}"})
    with suppress(ConnectionError):
        return connection.getresponse().status
    return 0


def attack(row: dict[str, Any]) -> float:
    """Do what the row says, then ask as one should, and return the status that the attack was answered with."""
    status = _attack(row["what"])
    assert post("/chat/completions", json.dumps(ASK).encode()) == 200
    return float(status)


def _attack(what: str) -> int:
    if what in BODIES:
        return post("/chat/completions", json.dumps(BODIES[what]).encode())
    match what:
        case "another key":
            return post("/chat/completions", json.dumps(ASK).encode(), key="guessed")
        case "a key that is no text":
            return post("/chat/completions", json.dumps(ASK).encode(), key="\xff")
        case "no JSON":
            return post("/chat/completions", b"{")
        case "deep nesting":
            return post("/chat/completions", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
        case "a large body":
            return post("/chat/completions", b" " * (17 << 20))
        case "a reward that is none":
            return post("/finish", b'{"reward": NaN}')
        case "a reward without bounds":
            return post("/finish", b'{"reward": 1e300}')
        case "a state that is too large":
            return post("/finish", json.dumps({"state": "x" * (1 << 20)}).encode())
        case "a state that is too deep":
            return post("/finish", b'{"state": ' + b"[" * 100 + b"]" * 100 + b"}")
        case "a field that is none":
            return post("/finish", b'{"rewards": 1.0}')
        case "exit":
            os._exit(3)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close everything":
            os.closerange(0, 1024)
            time.sleep(3600)  # There is nothing to wait for.
        case "forge an answer":
            _write_everywhere(b'{"kind":"Finished","episode":0,"reward":1}\n')
            time.sleep(3600)
        case "leave a daemon":
            program = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(3600)"
            subprocess.run([sys.executable, "-c", program, "daemon of a hostile agent"], check=True)
        case "signal the one that started it":
            with suppress(OSError):
                os.kill(os.getppid(), 0)
                return 1
    return 0


def _write_everywhere(line: bytes) -> None:
    for descriptor in range(3, 256):
        with suppress(OSError):
            os.write(descriptor, line)
