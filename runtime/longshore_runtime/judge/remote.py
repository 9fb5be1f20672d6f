"""A judge behind an OpenAI-compatible HTTP interface."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import orjson

from longshore_runtime.judge.endpoint import Endpoint, start_of
from longshore_runtime.judge.errors import NoReply
from longshore_runtime.judge.options import RemoteJudgeOptions

_CHAT_PATH: Final = "/chat/completions"
_PLAIN_PATH: Final = "/completions"
_MAX_ANSWER_BYTES: Final = 4 << 20
"""Size of an answer: 128 Ki tokens of a reply whose characters are all escaped, several times over."""


class RemoteJudge:
    """Sends each prompt as a separate request, several at a time."""

    def __init__(self, options: RemoteJudgeOptions) -> None:
        """Keep the options; connects to nothing yet."""
        base = options.url.rstrip("/")
        url = base if base.endswith(_PLAIN_PATH) else base + _CHAT_PATH
        self._is_chat = url.endswith(_CHAT_PATH)
        self._endpoint = Endpoint(url, options, url_field="judge.url")
        self._options = options

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """See `models.JudgeModel`. Called from a thread without an event loop."""
        return asyncio.run(self._complete(prompts, max_tokens))

    def close(self) -> None:
        """Do nothing: no connection outlives a call."""

    async def _complete(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        places = asyncio.Semaphore(self._options.max_parallel)
        async with self._endpoint.session() as session:

            async def ask(prompt: str) -> str:
                async with places:
                    body = await self._endpoint.ask(session, self._request(prompt, max_tokens), _MAX_ANSWER_BYTES)
                    return self._reply(body)

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(ask(prompt)) for prompt in prompts]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    def _request(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        common = {"model": self._options.model, "max_tokens": max_tokens, "temperature": 0.0}
        if self._is_chat:
            return common | {"messages": [{"role": "user", "content": prompt}]}
        return common | {"prompt": prompt}

    def _reply(self, body: bytes) -> str:
        shown_url = self._endpoint.shown_url
        try:
            choice = orjson.loads(body)["choices"][0]
            reply = choice["message"]["content"] if self._is_chat else choice["text"]
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise NoReply(f"{shown_url} answered no completion ({start_of(body)})") from error
        if not isinstance(reply, str):
            raise NoReply(f"{shown_url} answered a completion without text ({start_of(body)})")
        return reply
