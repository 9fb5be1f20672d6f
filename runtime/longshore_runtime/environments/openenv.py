"""Environment that an OpenEnv server runs: an episode is a session, which is a WebSocket.

    reset ──► {"type": "reset", "data": {"seed": …, fields of the row}}     ◄── {"type": "observation", "data": …}
    call  ──► {"type": "step", "data": action}                              ◄── the same, or {"type": "error", …}
    end   ──► {"type": "state"}, if a reward function may read it           ◄── {"type": "state", "data": …}

The schema of actions decides how the model acts. Tools of an MCP server are offered as they are. An action with one
field, which is text, is a turn of the model without its thoughts. Any other is the tool `step`, with the fields of the
action.

The reward is the sum of the rewards of all steps, as in the examples of OpenEnv; a rubric of whole trajectories gives 0
until the last step. Whatever a server sends is read as if an attacker had written it.

Source: https://github.com/meta-pytorch/OpenEnv, `core/env_server`: http_server.py, serialization.py, mcp_types.py.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from longshore_runtime.environments.pod_protocol import MAX_TOOLS, FailureCause
from longshore_runtime.environments.served import Served, ToolFailed
from longshore_runtime.environments.tool_calls import MAX_NAME
from longshore_runtime.environments.tools import Schema, WrongResult
from longshore_runtime.rewards.failure_text import error_text, shortened, shown
from longshore_runtime.rewards.row_json import is_deeper

_MAX_BYTES: Final = 16 << 20
"""Largest size of a message or schema."""
_MAX_DEPTH: Final = 64
_MAX_SCHEMA_DEPTH: Final = 32
"""Levels of a schema with its definitions in place, which may contain themselves."""
_MAX_SCHEMA_VALUES: Final = 10_000
_MAX_ERROR: Final = 240
_NUM_ERRORS: Final = 8
"""Number of mistakes in an action that the model is told."""
_SHARE: Final = 0.9
"""Share of the limit of a call within which an episode must begin, or it fails with what was in its way."""
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_HEARTBEAT_S: Final = 30.0
_NUM_MESSAGES: Final = 4
"""Number of messages that are kept; a server sends one for each of ours."""
_SEED_BITS: Final = 31
"""Bits of the seed that servers get: many generators take no more."""
_FULL: Final = "CAPACITY_REACHED"
_MODELS_FAULT: Final = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR"})
"""Codes of errors about an action. The session goes on, and the model reads them."""


@dataclass(frozen=True)
class _Actions:
    """How the model acts."""

    schemas: Sequence[Schema] = ()
    """Schemas of the tools; none: a turn is the action."""
    text_field: str = ""
    """Field of the action that is a turn; empty: the model calls tools."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every action."""
    are_listed: bool = False
    """Whether the server lists tools of its own, as MCP servers do."""


@dataclass(frozen=True)
class _Result:
    """What a server answers to `reset` or `step`."""

    observation: Mapping[str, Any]
    reward: float | None
    is_done: bool


class _Refused(Exception):
    """Raised when the server answers with an error; the message is its own."""

    def __init__(self, message: str, code: object) -> None:
        """Take what the server says."""
        super().__init__(message)
        self.code = code


class _Lost(Exception):
    """Raised when a server is not there, or not any more; the message says what was seen."""


class OpenEnvironment(Served):
    """The environment of one episode."""

    def __init__(self, url: str, call_timeout_s: float) -> None:
        """Take the address of the server and the limit of a call, without connecting."""
        self._url = url.rstrip("/")
        parts = urlsplit(self._url)
        self._name = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        """Address without user and password, for messages."""
        self._limit_s = _SHARE * call_timeout_s
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reading: asyncio.Task[None] | None = None
        self._messages: asyncio.Queue[aiohttp.WSMessage] = asyncio.Queue()
        self._actions = _Actions()
        self._reward: float | None = None
        self._is_full = False
        """Whether the server had no session left when it was asked last."""

    async def reset(self, **row: Any) -> str | None:
        """Begin a session once the server is there and has room; a row may have a seed of its own."""
        data = {"seed": random.getrandbits(_SEED_BITS), **row}
        problem, pause_s = f"{self._name} does not answer", _FIRST_PAUSE_S
        try:
            async with asyncio.timeout(self._limit_s):
                while isinstance(result := await self._begun(data), str):
                    problem = result
                    await self._close()
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError as error:
            cause: FailureCause = "server_full" if self._is_full else "server"
            raise WrongResult(f"could not begin within {self._limit_s:g} s: {problem}", cause) from error
        self.is_over = result.is_done
        text = _text(result.observation)
        return f"\n\n{text}" if text else None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Take a step with a tool."""
        if self.is_over:
            raise ToolFailed("The episode is over.")
        if name not in {one["function"]["name"] for one in self._actions.schemas}:
            raise ToolFailed(f"Tool {name} not found.")
        if self._actions.are_listed:
            result = await self._step({"type": "call_tool", "tool_name": name, "arguments": dict(arguments)})
            return _text_of_tool(result.observation)
        return _text((await self._step({**arguments, **self._actions.constants})).observation)

    async def reply(self, message: str) -> str | None:
        """Take a step with a turn, unless the model acts by tools: then the episode is over."""
        if self.is_over or not self._actions.text_field:
            return None
        answer = message.rpartition("</think>")[2].strip()
        try:
            result = await self._step({self._actions.text_field: answer, **self._actions.constants})
        except ToolFailed as error:
            return str(error)
        return None if result.is_done else _text(result.observation)

    async def get_state(self) -> Any:
        """Return what the server says of its state."""
        try:
            return await self._answered("state")
        except _Refused as refused:
            raise WrongResult(f"was refused by {self._name} ({refused})") from refused

    async def get_reward(self) -> float | None:
        """Return the sum of the rewards of all steps, or None if no step had one, and end the session."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionError):
                await self._socket.send_str('{"type": "close"}')
        await self._close()
        return self._reward

    async def _begun(self, data: Mapping[str, Any]) -> _Result | str:
        """Return the answer to `reset` in a new session, or why there is none yet."""
        self._is_full = False
        try:
            self._client = aiohttp.ClientSession(auto_decompress=False)
            actions = _actions_of(await self._schema(self._client))
            self._socket = await self._client.ws_connect(
                f"{self._url}/ws", max_msg_size=_MAX_BYTES, heartbeat=_HEARTBEAT_S
            )
            self._messages = asyncio.Queue(_NUM_MESSAGES)
            self._reading = asyncio.create_task(_read(self._socket, self._messages))
            result = _result(await self._exchange("reset", data))
            if actions.are_listed:
                actions = _listed(_result(await self._exchange("step", {"type": "list_tools"})).observation)
        except _Refused as refused:
            if refused.code == _FULL:
                self._is_full = True
                return (
                    f"{self._name} has no session left ({refused}); let it run more at a time, lower episodesPerPod or "
                    "pods.count, or raise callTimeoutSeconds"
                )
            raise WrongResult(f"was refused by {self._name} ({refused})") from refused
        except _Lost as error:
            return f"{self._name} cannot be used ({error})"
        except (aiohttp.ClientError, OSError) as error:
            return f"{self._name} cannot be reached ({error_text(error)})"
        self._actions, self.schemas = actions, actions.schemas
        return result

    async def _step(self, action: Mapping[str, Any]) -> _Result:
        try:
            result = _result(await self._answered("step", action))
        except _Refused as refused:
            if refused.code in _MODELS_FAULT:
                raise ToolFailed(str(refused)) from refused
            raise WrongResult(f"was refused by {self._name} ({refused})") from refused
        if result.reward is not None:
            self._reward = (self._reward or 0.0) + result.reward
        self.is_over = result.is_done
        return result

    async def _answered(self, kind: str, data: Mapping[str, Any] | None = None) -> Any:
        """Return the data that a message is answered with in a session. Raises: _Refused, WrongResult."""
        try:
            return await self._exchange(kind, data)
        except (_Lost, aiohttp.ClientError, OSError) as error:
            seen = error if isinstance(error, _Lost) else error_text(error)
            raise WrongResult(f"lost the connection to {self._name} ({seen})", "server") from error

    async def _schema(self, client: aiohttp.ClientSession) -> Any:
        """Return the schema of actions. Raises: _Lost, WrongResult."""
        headers, body = {"Accept-Encoding": "identity"}, bytearray()
        async with client.get(f"{self._url}/schema", headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise _Lost(f"/schema answers with status {response.status}")
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise WrongResult(f"got a schema of more than {_MAX_BYTES >> 20} MiB")
        match _decoded(body):
            case {"action": dict(action)}:
                return action
            case other:
                raise WrongResult(f"got {shown(other, _MAX_ERROR)}, which has no schema of actions")

    async def _exchange(self, kind: str, data: Mapping[str, Any] | None) -> Any:
        """Return the data that a message is answered with. Raises: _Refused, _Lost, WrongResult."""
        assert self._socket is not None, "a session has begun"
        with contextlib.suppress(ConnectionError):  # What the server has said before it hung up is still there.
            asked = {"type": kind} if data is None else {"type": kind, "data": data}  # Servers refuse other fields.
            await self._socket.send_str(orjson.dumps(asked).decode())
        message = await self._messages.get()
        if message.type is aiohttp.WSMsgType.ERROR:
            raise _Lost(error_text(message.data))
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise _Lost(f"it hung up with code {self._socket.close_code}" if self._socket.closed else "binary data")
        awaited = "state" if kind == "state" else "observation"
        match _decoded(message.data):
            case {"type": found, "data": answer} if found == awaited:
                return answer
            case {"type": "error", "data": {"message": str(text)} as error}:
                raise _Refused(_with_mistakes(text, error.get("errors")), error.get("code"))
            case other:
                raise WrongResult(f"got {shown(other, _MAX_ERROR)}, which is no {awaited}")

    async def _close(self) -> None:
        """Drop the connection: a server may be slow to say goodbye."""
        if self._reading is not None:
            self._reading.cancel()
        if self._client is not None:
            await self._client.close()
        self._client = self._socket = self._reading = None


async def _read(socket: aiohttp.ClientWebSocketResponse, messages: asyncio.Queue[aiohttp.WSMessage]) -> None:
    """Read while the model speaks, too: servers hang up on clients that leave their pings without an answer."""
    while not socket.closed:
        await messages.put(await socket.receive())


def _decoded(text: str | bytearray) -> Any:
    try:
        value = orjson.loads(text)
    except ValueError as error:
        raise WrongResult(f"got what is not JSON ({error_text(error)})") from error
    if is_deeper(value, _MAX_DEPTH):
        raise WrongResult(f"got JSON with more than {_MAX_DEPTH} levels")
    return value


def _result(data: Any) -> _Result:
    match data:
        case {"observation": dict(observation)}:
            reward, is_done = data.get("reward"), data.get("done", False)
            if isinstance(reward, int | float | None) and isinstance(is_done, bool):
                seen = {name: value for name, value in observation.items() if name != "metadata"}
                return _Result(seen, None if reward is None else float(reward), is_done)
    raise WrongResult(f"got {shown(data, _MAX_ERROR)}, which is no observation with its reward")


def _text(observation: Mapping[str, Any]) -> str:
    """Return an observation as text: its only field if it is text and the others are empty, else JSON."""
    filled = [value for value in observation.values() if value not in (None, "", [], {})]
    if not filled:
        return ""
    return filled[0] if len(filled) == 1 and isinstance(filled[0], str) else _json(observation)


def _text_of_tool(observation: Mapping[str, Any]) -> str:
    """Return what a tool of an MCP server has returned; raises ToolFailed."""
    match observation:
        case {"error": {"message": str(message)}}:
            raise ToolFailed(message)
        case {"result": {"content": list(blocks)} as result}:
            texts = [one["text"] for one in blocks if isinstance(one, dict) and isinstance(one.get("text"), str)]
            text = "\n".join(texts) if texts else _json(result)
            if result.get("is_error") is True:
                raise ToolFailed(text)
            return text
        case {"result": str(text)}:
            return text
        case {"result": result}:
            return _json(result)
        case _:
            return _text(observation)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _with_mistakes(text: str, mistakes: Any) -> str:
    """Return an error with the fields that are wrong, as pydantic lists them."""
    told = []
    for one in mistakes[:_NUM_ERRORS] if isinstance(mistakes, list) else ():
        match one:
            case {"loc": list(place), "msg": str(problem)}:
                told.append(f"{'.'.join(map(str, place))}: {problem}")
    return shortened(": ".join(filter(None, (text, "; ".join(told)))), _MAX_ERROR)


def _actions_of(schema: Mapping[str, Any]) -> _Actions:
    """Return how the model acts, by the schema of actions; raises WrongResult."""
    match _inlined(schema):
        case {"properties": dict(properties)} as action if all(isinstance(one, dict) for one in properties.values()):
            fields = {name: one for name, one in properties.items() if name != "metadata"}
        case other:
            raise WrongResult(f"got {shown(other, _MAX_ERROR)}, which is no schema of an action with fields")
    constants = {name: one["const"] for name, one in fields.items() if "const" in one}
    fields = {name: one for name, one in fields.items() if name not in constants}
    if not fields or (constants.get("type") == "call_tool" and "tool_name" in fields):
        return _Actions(are_listed=True)
    if len(fields) == 1:
        ((name, one),) = fields.items()
        if one.get("type") == "string" and "enum" not in one:
            return _Actions(text_field=name, constants=constants)
    required = action.get("required")
    names = [name for name in required if name in fields] if isinstance(required, list) else []
    parameters = {"type": "object", "properties": fields, "required": names}
    description = action.get("description")
    about = description if isinstance(description, str) else "Act in the environment."
    return _Actions([_tool("step", about, parameters)], constants=constants)


def _listed(observation: Mapping[str, Any]) -> _Actions:
    """Return the tools that an MCP server lists; raises WrongResult."""
    tools = observation.get("tools")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise WrongResult(f"got no list of 1 to {MAX_TOOLS} tools, but {shown(tools, _MAX_ERROR)}")
    schemas = []
    for one in tools:
        match one:
            case {"name": str(name), "description": str(about), "input_schema": dict(parameters)}:
                if not 0 < len(name) <= MAX_NAME:
                    raise WrongResult(f"got a tool with the name {shown(name, _MAX_ERROR)}")
                schemas.append(_tool(name, about, {"type": "object", "properties": {}} | _inlined(parameters)))
            case _:
                raise WrongResult(f"got {shown(one, _MAX_ERROR)}, which describes no tool")
    return _Actions(schemas, are_listed=True)


def _tool(name: str, about: str, parameters: Mapping[str, Any]) -> Schema:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions in place and without titles, as models read it; raises WrongResult."""
    definitions = schema.get("$defs")
    known = definitions if isinstance(definitions, dict) else {}
    inlined: dict[str, Any] = _value_inlined(schema, known, itertools.count(), 0)
    return inlined


def _value_inlined(value: Any, definitions: Mapping[str, Any], counter: Iterator[int], depth: int) -> Any:
    if next(counter) > _MAX_SCHEMA_VALUES:
        raise WrongResult(f"got a schema of more than {_MAX_SCHEMA_VALUES:,} values")
    if isinstance(value, list):
        return [_value_inlined(one, definitions, counter, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    if depth > _MAX_SCHEMA_DEPTH:
        return {}
    if isinstance(name := value.get("$ref"), str):
        found = definitions.get(name.removeprefix("#/$defs/"))
        others = {key: one for key, one in value.items() if key != "$ref"}
        return _value_inlined((found if isinstance(found, dict) else {}) | others, definitions, counter, depth + 1)
    return {
        key: _value_inlined(one, definitions, counter, depth + 1)
        for key, one in value.items()
        if key != "$defs" and not (key == "title" and isinstance(one, str))
    }
