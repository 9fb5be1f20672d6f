"""A judge behind an OpenAI-compatible HTTP interface."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import orjson
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from longshore.api.addresses import redacted, without_credentials
from longshore_runtime.judge.errors import JudgeSetupError, NoReply, NoReplyYet, NotThere
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.rewards.answer_body import NOT_COMPRESSED, UnreadableBody, read_body

_CHAT_PATH: Final = "/chat/completions"
_PLAIN_PATH: Final = "/completions"
_LONGEST_WAIT_S: Final = 10.0
_MAX_ANSWER_BYTES: Final = 4 << 20
"""Size of an answer: 128 Ki tokens of a reply whose characters are all escaped, several times over."""
_SHOWN_CHARACTERS: Final = 200


class RemoteJudge:
    """Sends each prompt as a separate request, several at a time. The bearer token reaches no message and no log."""

    def __init__(self, options: RemoteJudgeOptions) -> None:
        """Keep the options; connects to nothing yet."""
        base = options.url.rstrip("/")
        self._url = base if base.endswith(_PLAIN_PATH) else base + _CHAT_PATH
        self._shown_url = without_credentials(self._url)
        self._options = options

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """See `models.JudgeModel`. Called from a thread without an event loop."""
        return asyncio.run(self._complete(prompts, max_tokens))

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""

    async def _complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        timeout = aiohttp.ClientTimeout(total=self._options.timeout_s, sock_connect=self._options.connect_timeout_s)
        places = asyncio.Semaphore(self._options.max_parallel)
        connector = aiohttp.TCPConnector(limit=0)  # The semaphore limits: waiting for it costs a try no time.
        async with aiohttp.ClientSession(
            timeout=timeout, headers=self._headers(), connector=connector, auto_decompress=False
        ) as session:

            async def ask(prompt: str) -> str:
                async with places:
                    return await self._ask(session, self._request(prompt, max_tokens))

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(ask(prompt)) for prompt in prompts]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, session: aiohttp.ClientSession, request: dict[str, Any]) -> str:
        options = self._options
        tries = AsyncRetrying(
            retry=retry_if_exception_type(NoReplyYet),
            stop=stop_after_attempt(options.num_tries),
            wait=wait_exponential(multiplier=options.retry_wait_s, max=_LONGEST_WAIT_S),
            reraise=True,
        )
        try:
            return await tries(self._try, session, request)
        except NoReplyYet as error:
            raise type(error)(f"{error}; tries: {options.num_tries}") from error

    async def _try(self, session: aiohttp.ClientSession, request: dict[str, Any]) -> str:
        try:
            # A redirect would turn the request into another, and might carry the token elsewhere.
            async with session.post(self._url, json=request, allow_redirects=False) as response:
                status, encoding = response.status, response.headers.get("Content-Encoding")
                try:
                    body = await read_body(response.content.iter_any(), encoding, _MAX_ANSWER_BYTES)
                except UnreadableBody as error:
                    if status == HTTPStatus.OK:
                        raise NoReply(f"{self._shown_url} answered with {error}") from error
                    body = str(error).encode()
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise NotThere(f"{self._shown_url} cannot be reached ({redacted(str(error))})") from error
        except TimeoutError as error:
            raise NoReplyYet(f"{self._shown_url} did not answer within {self._options.timeout_s:g} s") from error
        except aiohttp.InvalidURL as error:
            raise JudgeSetupError(f"judge.url: {self._shown_url!r} is no address") from error
        except aiohttp.ClientError as error:
            raise NoReplyYet(f"{self._shown_url} cannot be reached ({redacted(str(error))})") from error
        if status == 429 or status >= 500:
            raise NoReplyYet(f"{self._shown_url} answered {status} ({_start_of(body)})")
        if status in (401, 403):
            raise JudgeSetupError(self._refused(status))
        if status != 200:
            raise NoReply(f"{self._shown_url} answered {status} ({_start_of(body)})")
        return self._reply(body)

    def _request(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        common = {"model": self._options.model, "max_tokens": max_tokens, "temperature": 0.0}
        if self._is_chat:
            return common | {"messages": [{"role": "user", "content": prompt}]}
        return common | {"prompt": prompt}

    def _reply(self, body: bytes) -> str:
        try:
            choice = orjson.loads(body)["choices"][0]
            reply = choice["message"]["content"] if self._is_chat else choice["text"]
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise NoReply(f"{self._shown_url} answered no completion ({_start_of(body)})") from error
        if not isinstance(reply, str):
            raise NoReply(f"{self._shown_url} answered a completion without text ({_start_of(body)})")
        return reply

    def _headers(self) -> dict[str, str]:
        path = self._options.token_file
        if path is None:
            return NOT_COMPRESSED
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise JudgeSetupError(f"tokenSecret: {str(path)!r} cannot be read") from error
        if not token or not token.isprintable() or not token.isascii():
            raise JudgeSetupError(f"tokenSecret: {str(path)!r} holds no token on one line")
        return {**NOT_COMPRESSED, "Authorization": f"Bearer {token}"}

    def _refused(self, status: int) -> str:
        if self._options.token_file is None:
            return f"tokenSecret: {self._shown_url} answered {status}: it asks for a token, set this field"
        return f"tokenSecret: {self._shown_url} answered {status}: it refuses this token"

    @property
    def _is_chat(self) -> bool:
        return self._url.endswith(_CHAT_PATH)


def _start_of(body: bytes) -> str:
    """Return the first words of an answer, for a message."""
    text = " ".join(body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace").split())
    return text[:_SHOWN_CHARACTERS] or "an empty body"
