"""A server that speaks the protocol of OpenEnv, as `core/env_server/http_server.py` of version 0.10 does, or badly."""

import asyncio
import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import WSMsgType, web

Json = dict[str, Any]
METADATA: Final = {"metadata": {"additionalProperties": True, "title": "Metadata", "type": "object"}}
GUESS: Final = {
    "$defs": {"Tone": {"enum": ["kind", "rude"], "title": "Tone", "type": "string"}},
    "additionalProperties": False,
    "description": "Guess a number.",
    "properties": {
        **METADATA,
        "number": {"description": "The guess.", "title": "Number", "type": "integer"},
        "tone": {"$ref": "#/$defs/Tone", "default": "kind"},
    },
    "required": ["number"],
    "title": "GuessAction",
    "type": "object",
}
MESSAGE: Final = {
    "properties": {**METADATA, "message": {"title": "Message", "type": "string"}},
    "required": ["message"],
    "type": "object",
}
CALL_TOOL: Final = {
    "properties": {
        **METADATA,
        "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"additionalProperties": True, "type": "object"},
    },
    "required": ["tool_name"],
    "type": "object",
}
TOOL: Final = {
    "name": "add",
    "description": "Add to the counter.",
    "input_schema": {"properties": {"number": {"type": "integer"}}, "required": ["number"], "type": "object"},
}


class Invalid(Exception):
    """An action that does not fit the schema."""


@dataclass
class Game:
    """A number to be found: each guess costs a tenth, and the right one is worth 1."""

    secret: int = 0

    def reset(self, data: Mapping[str, Any]) -> Json:
        self.secret = data.get("secret", data["seed"] % 100)
        return {"observation": {"hint": f"seed {data['seed']}", "metadata": {"a": 1}}, "reward": None, "done": False}

    def step(self, action: Mapping[str, Any]) -> Json:
        if action.get("type") == "list_tools":
            return {"observation": {"tools": [TOOL]}, "reward": None, "done": False}
        if action.get("type") == "call_tool":
            return self._called(action["tool_name"], action["arguments"])
        if "message" in action:
            number = int(action["message"])
        elif isinstance(action.get("number"), int):
            number = action["number"]
        else:
            raise Invalid
        is_right = number == self.secret
        hint = "right" if is_right else "higher" if number < self.secret else "lower"
        return {"observation": {"hint": hint, "seen": []}, "reward": 1.0 if is_right else -0.1, "done": is_right}

    def _called(self, name: str, arguments: Mapping[str, Any]) -> Json:
        if not isinstance(arguments.get("number"), int):
            error = {"error_type": "invalid_args", "message": "number is missing"}
            return {"observation": {"tool_name": name, "result": None, "error": error}, "reward": None, "done": False}
        self.secret += arguments["number"]
        blocks = [{"type": "text", "text": str(self.secret)}]
        result = {"content": blocks, "structured_content": {"result": self.secret}, "is_error": False}
        return {
            "observation": {"tool_name": name, "result": result, "error": None},
            "reward": 0.5,
            "done": self.secret > 100,
        }


@dataclass
class Server:
    """A running server; its fields may be changed while it runs."""

    action: Any = field(default_factory=lambda: GUESS)
    max_sessions: int = 100
    num_sessions: int = 0
    resets: list[Json] = field(default_factory=list)
    closed: "queue.Queue[str]" = field(default_factory=queue.Queue)
    """How sessions have ended: by a message, or because the connection is gone."""
    refused: threading.Event = field(default_factory=threading.Event)
    """Set once a session was refused."""
    pings: bool = False
    """Whether it pings after each answer."""
    ponged: threading.Event = field(default_factory=threading.Event)
    """Set once a ping was answered."""
    ill: Callable[[web.WebSocketResponse, Json], Awaitable[bool]] | None = None
    """What it does with a message instead of answering it; returns whether it has done something."""
    url: str = ""

    async def schema(self, _request: web.Request) -> web.StreamResponse:
        """What the model may do."""
        if callable(self.action):
            response: web.StreamResponse = self.action()
            return response
        return web.json_response({"action": self.action, "observation": {}, "state": {}})

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        """One session."""
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        if self.num_sessions >= self.max_sessions:
            text = f"Server at capacity: {self.num_sessions}/{self.max_sessions} sessions active"
            await socket.send_json(error("CAPACITY_REACHED", text, active_sessions=self.num_sessions))
            await socket.close()
            self.refused.set()
            return socket
        self.num_sessions += 1
        try:
            end = await self._served(socket, Game())
        finally:
            self.num_sessions -= 1
        self.closed.put(end)
        return socket

    async def _served(self, socket: web.WebSocketResponse, game: Game) -> str:
        async for message in socket:
            if message.type is WSMsgType.PONG:
                self.ponged.set()
                continue
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
                continue
            assert message.type is WSMsgType.TEXT, "the server receives text"
            question = json.loads(message.data)
            if self.ill is not None and await self.ill(socket, question):
                continue
            match question:
                case {"type": "close"}:
                    return "message"
                case {"type": "reset", "data": dict(data)}:
                    self.resets.append(data)
                    answer = {"type": "observation", "data": game.reset(data)}
                case {"type": "step", "data": dict(action)}:
                    answer = self._stepped(game, action)
                case {"type": "state"} if len(question) == 1:
                    answer = {"type": "state", "data": {"step_count": 0, "secret": game.secret}}
                case _:
                    answer = error("UNKNOWN_TYPE", f"Unknown message type: {question.get('type')}")
            await socket.send_json(answer)
            if self.pings:
                await socket.ping()
        return "connection"

    def _stepped(self, game: Game, action: Json) -> Json:
        try:
            return {"type": "observation", "data": game.step(action)}
        except Invalid:
            mistakes = [{"type": "missing", "loc": ["number"], "msg": "Field required", "input": action}]
            return error("VALIDATION_ERROR", "Invalid message", errors=mistakes)
        except ValueError as problem:
            return error("EXECUTION_ERROR", str(problem))


def error(code: str, message: str, **more: Any) -> Json:
    """An answer that is an error."""
    return {"type": "error", "data": {"message": message, "code": code, **more}}


@contextmanager
def running(server: Server, port: int = 0, host: str = "127.0.0.1") -> Iterator[Server]:
    """The server, from a thread."""
    loop, begun, end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.get("/schema", server.schema), web.get("/ws", server.session)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
        server.url = f"http://{host}:{runner.addresses[0][1]}"
        begun.set()
        await end.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="openenv-server")
    thread.start()
    try:
        assert begun.wait(60)
        yield server
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
