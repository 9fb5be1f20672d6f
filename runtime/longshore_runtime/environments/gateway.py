"""The model as the agent of one episode sees it: an OpenAI-compatible API on a port and with a key of its own.

    agent ── HTTP ──► thread "gateway" ── `Asked`, or how the agent ended ──► the episode's own thread
          ◄──────────                  ◄── `deliver`: the turn that was sampled ──

The key is worth nothing elsewhere and ends with the process. Requests are served one after the other, also those that
an agent sends at once: an episode has one turn at a time.
"""

import asyncio
import hmac
import json
import queue
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from longshore_runtime.environments import openai_chat
from longshore_runtime.environments.final_state import written_state
from longshore_runtime.environments.openai_chat import BadRequest, ModelRequest, ModelTurn
from longshore_runtime.environments.pod_protocol import (
    MAX_MESSAGE_BYTES,
    Asked,
    AskedMessage,
    FailureCause,
    decode_answer,
    encode,
)
from longshore_runtime.process.loop_thread import LoopThread
from longshore_runtime.rewards.failure_text import shown
from longshore_runtime.rewards.numbers import optional_reward
from longshore_runtime.rewards.transports.pod_protocol import BadMessage
from longshore_runtime.rewards.transports.token_server import authorization_of

HOST: Final = "127.0.0.1"
"""Host of the API: nobody outside the pod can ask."""
_SPARE_BYTES: Final = 64
"""Room in a message for the number of the episode."""


class EpisodeIsOver(Exception):
    """Raised where the model answers no more."""


@dataclass(frozen=True)
class AgentEnded:
    """The agent has ended, or has posted its reward."""

    reward: float | None = None
    state: object = None
    """Final state, a JSON value; None: the agent tells none."""
    error: str | None = None
    """What went wrong, as the end of a sentence; None: nothing."""
    cause: FailureCause = "exception"
    """Cause that is counted if something went wrong."""


def ended_with(given: Mapping[str, Any]) -> AgentEnded:
    """Return the end of an agent that gives `reward`, `state` or both; raises ValueError with the end of a sentence."""
    if unknown := given.keys() - {"reward", "state"}:
        raise ValueError(f"returned {shown(min(unknown, key=str))} besides reward and state")
    return AgentEnded(optional_reward(given.get("reward")), given.get("state"))


class Session:
    """What was asked and said in an episode, and the turn that is wanted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin an episode; `loop` is that of the gateway."""
        self.news: queue.SimpleQueue[Asked | AgentEnded] = queue.SimpleQueue()
        """What the agent does; the episode number is filled in by whoever reads it."""
        self._loop = loop
        self._one_at_a_time = asyncio.Lock()
        self._said: list[tuple[ModelRequest, AskedMessage]] = []
        """Requests and what the model said to each, by the number of the turn."""
        self._wanted: asyncio.Future[ModelTurn] | None = None
        self._undelivered: list[tuple[ModelRequest, ModelTurn]] = []
        """Turns whose clients had hung up: they may ask for them again."""
        self._is_over = False

    async def turn(self, request: ModelRequest, is_there: Callable[[], bool]) -> ModelTurn:
        """Return what the model says.

        Args:
            request: what it is asked.
            is_there: whether the client still waits for it.

        Raises:
            EpisodeIsOver: the model answers no more.
            ConnectionError: the client hung up before its turn had begun.
        """
        async with self._one_at_a_time:
            if not is_there():
                raise ConnectionAbortedError("the client has hung up")
            place = next((place for place, one in enumerate(self._undelivered) if one[0] == request), None)
            turn = await self._sampled(request) if place is None else self._undelivered.pop(place)[1]
            await asyncio.sleep(0)  # The end of a connection that came before the turn is read after it otherwise.
            if not is_there():
                self._undelivered.append((request, turn))
            return turn

    async def _sampled(self, request: ModelRequest) -> ModelTurn:
        if self._is_over:
            raise EpisodeIsOver
        after = self._goes_on_from(request)
        self._undelivered = [one for one in self._undelivered if one[1].number != after]  # Somebody has read it.
        known = () if after is None else self._known(after)
        num_known = len(known)
        asked = Asked(
            0,
            after,
            list(request.messages[num_known:]),
            list(request.tools) if after is None else [],
            request.max_tokens,
            list(request.stop),
        )
        _require_readable(asked)
        self._wanted = self._loop.create_future()
        self.news.put(asked)
        turn = replace(await self._wanted, number=len(self._said))
        if not request.calls_in_parallel:
            turn = replace(turn, calls=turn.calls[:1])
        # What is kept already is kept once: every request of a conversation repeats its messages and tools.
        before = request if after is None else self._said[after][0]
        kept = replace(before, messages=(*known, *request.messages[num_known:]))
        self._said.append((kept, AskedMessage("assistant", turn.content, None, list(turn.calls))))
        return turn

    def _goes_on_from(self, request: ModelRequest) -> int | None:
        """Return the number of the turn that a conversation goes on from; the longest one if there are several."""
        longest_first = sorted(range(len(self._said)), key=lambda turn: (len(self._said[turn][0].messages), turn))[::-1]
        return next((number for number in longest_first if self._goes_on(request, number)), None)

    def _goes_on(self, request: ModelRequest, number: int) -> bool:
        known = self._known(number)
        rest = request.messages[len(known) :]
        return (
            bool(rest)
            and not any(one.role == "assistant" for one in rest)
            and self._said[number][0].tools == request.tools
            and _are_alike(request.messages, known)
        )

    def _known(self, number: int) -> tuple[AskedMessage, ...]:
        """Return the messages of a conversation up to a turn, which is the last one."""
        request, said = self._said[number]
        return (*request.messages, said)

    def unread(self) -> list[int]:
        """Return the numbers of the turns that no client has received or shown; called once the episode is over."""
        return asyncio.run_coroutine_threadsafe(self._unread(), self._loop).result()

    async def _unread(self) -> list[int]:
        async with self._one_at_a_time:  # A turn that was just delivered may not have come as far as its client.
            return [turn.number for _, turn in self._undelivered]

    def deliver(self, turn: ModelTurn) -> None:
        """Give the agent the turn that it waits for; called in any thread."""
        self._loop.call_soon_threadsafe(self._settle, turn)

    def end(self) -> None:
        """Refuse what the agent asks from now on, and what it waits for; called in any thread."""
        self._loop.call_soon_threadsafe(self._settle, None)

    def _settle(self, turn: ModelTurn | None) -> None:
        if turn is None:
            self._is_over = True
        if self._wanted is not None and not self._wanted.done():
            if turn is None:
                self._wanted.set_exception(EpisodeIsOver())
            else:
                self._wanted.set_result(turn)

    def finish(self, ended: AgentEnded) -> None:
        """End the episode with what the agent has posted; called in the loop."""
        self._is_over = True
        self.news.put(ended)


def _require_readable(asked: Asked) -> None:
    """Raise BadRequest for what the coordinator would not read: it would end the episode."""
    try:
        data = encode(asked)
        decode_answer(data)
    except (BadMessage, TypeError, RecursionError) as error:
        raise BadRequest(str(error)) from error
    if len(data) > MAX_MESSAGE_BYTES - _SPARE_BYTES:
        raise BadRequest(f"messages: {len(data) >> 20} MiB are too many, of {MAX_MESSAGE_BYTES >> 20} MiB at most")


def _are_alike(messages: Sequence[AskedMessage], known: Sequence[AskedMessage]) -> bool:
    """Return whether messages begin with known ones; agents may strip what the model said, and give calls new ids."""
    return len(messages) >= len(known) and all(
        a == b or (a.role == b.role == "assistant" and a.content.strip() == b.content.strip() and a.calls == b.calls)
        for a, b in zip(messages, known, strict=False)
    )


class Gateway:
    """The HTTP server of an episode, in a thread of its own."""

    def __init__(self) -> None:
        """Serve from now on."""
        self.key = secrets.token_urlsafe(24)
        """Key of the API."""
        thread = LoopThread("gateway")
        self.session = Session(thread.loop)
        """Requests of the agent."""
        self.base_url = thread.submit(self._listen()).result()
        """Address of the API, as clients take it."""

    async def _listen(self) -> str:
        application = web.Application(client_max_size=MAX_MESSAGE_BYTES)
        for path, handler in {
            "/chat/completions": self._chat,
            "/responses": self._responses,
            "/finish": self._finish,
        }.items():
            application.router.add_post(f"/v1{path}", handler)
        application.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        return f"http://{HOST}:{runner.addresses[0][1]}/v1"

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = openai_chat.read_chat(await self._body(request))
            turn = await self._turn(request, asked)
        except (BadRequest, EpisodeIsOver) as error:
            return _refusal(error)
        if not asked.is_streamed:
            return web.json_response(openai_chat.chat_completion(turn))
        events = (_event(chunk) for chunk in openai_chat.chat_chunks(turn, wants_usage=asked.wants_usage))
        return await _stream(request, (*events, b"data: [DONE]\n\n"))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = openai_chat.read_responses(await self._body(request))
            turn = await self._turn(request, asked)
        except (BadRequest, EpisodeIsOver) as error:
            return _refusal(error)
        in_parallel = asked.calls_in_parallel
        if not asked.is_streamed:
            return web.json_response(openai_chat.response(turn, calls_in_parallel=in_parallel))
        events = openai_chat.response_events(turn, calls_in_parallel=in_parallel)
        return await _stream(request, (_event(one, one["type"]) for one in events))

    async def _models(self, request: web.Request) -> web.Response:
        self._require_key(request)
        return web.json_response(openai_chat.models())

    async def _finish(self, request: web.Request) -> web.Response:
        try:
            ended = ended_with(await self._body(request))
            written_state(ended.state)
        except BadRequest as error:
            return _refusal(error)
        except ValueError as error:
            return _refusal(BadRequest(f"the agent {error}"))
        self.session.finish(ended)
        return web.json_response({})

    async def _turn(self, request: web.Request, asked: ModelRequest) -> ModelTurn:
        def is_there() -> bool:
            return request.transport is not None and not request.transport.is_closing()

        return await self.session.turn(asked, is_there)

    async def _body(self, request: web.Request) -> Mapping[str, Any]:
        self._require_key(request)
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not valid JSON ({error})") from error
        if not isinstance(body, dict):
            raise BadRequest("the body is not a JSON object")
        return body

    def _require_key(self, request: web.Request) -> None:
        if not hmac.compare_digest(authorization_of(request), f"Bearer {self.key}".encode()):
            raise web.HTTPUnauthorized(text='{"error": {"message": "the key is not that of this episode"}}')


def _refusal(error: BadRequest | EpisodeIsOver) -> web.Response:
    """Write an error that clients do not try again."""
    if isinstance(error, EpisodeIsOver):
        message, code = "the episode has no tokens or turns left", "context_length_exceeded"
    else:
        message, code = str(error), "invalid_request"
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return web.json_response(body, status=400)


def _event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    line = f"data: {json.dumps(data)}\n\n"
    return (line if name is None else f"event: {name}\n{line}").encode()


async def _stream(request: web.Request, events: Iterator[bytes] | Sequence[bytes]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for event in events:
        await answer.write(event)
    await answer.write_eof()
    return answer
