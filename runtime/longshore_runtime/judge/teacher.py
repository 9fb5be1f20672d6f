"""A teacher behind an OpenAI-compatible endpoint, which computes log-probabilities of responses.

driver ── `ask` ──► thread `teacher` ── requests ──► endpoint
thread `teacher` ── result of the future ──► whoever waits for it
"""

import asyncio
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import orjson

from longshore.api import contract
from longshore.api.objectives.distillation import AT, TeacherEndpoint
from longshore_runtime.errors import UserError
from longshore_runtime.judge.endpoint import Endpoint, start_of
from longshore_runtime.judge.errors import JudgeSetupError, NoReply
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.process.loop_thread import LoopThread
from longshore_runtime.trajectories.trajectory import LogProbs, TokenIds, log_probs

_FIELD: Final = f"{AT}.endpoint"
_OTHER_TOKENS: Final = "serve a model with the tokenizer of the model to train"
_CONNECT_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES: Final = 1 << 20
"""Largest size of an answer without its tokens, and of one that reports an error."""
_TOKEN_BYTES: Final = 1 << 10
"""Largest size of a token in an answer: vLLM writes its id, rank, log-probability and text, about 80 bytes."""

Conversation = tuple[TokenIds, TokenIds]
"""A prompt, and what follows it: sampled and observed tokens."""
_Answer = tuple[float, str | None]
"""Log-probability of a token, and its text if the endpoint tells it."""


class RemoteTeacher:
    """Sends each conversation as a separate request, several at a time."""

    def __init__(self, options: RemoteJudgeOptions) -> None:
        """Start the thread; connects to nothing yet. `options.url`: up to and including /v1."""
        self._options = options
        self._endpoint = Endpoint(f"{options.url.rstrip('/')}/completions", options, url_field="url")
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(options.max_parallel)
        self._thread = LoopThread("teacher")

    @classmethod
    def of(cls, settings: TeacherEndpoint) -> "RemoteTeacher":
        """Return the teacher of a job, in its coordinator."""
        token = os.environ.get(contract.ENV_TEACHER_TOKEN)
        return cls(
            RemoteJudgeOptions(
                settings.url,
                settings.model_name,
                Path(token) if token else None,
                timeout_s=settings.timeout_s,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                num_tries=1 + settings.retries,
                max_parallel=settings.max_concurrency,
            )
        )

    def ask(self, conversations: Sequence[Conversation]) -> "Future[list[LogProbs]]":
        """Ask for the log-probabilities of what follows each prompt; does not wait.

        The result raises UserError, a sentence that begins with the field.
        """
        return self._thread.submit(self._all(conversations))

    def require_same_tokens(self, tokens: TokenIds, text_of: Callable[[int], str]) -> None:
        """Ask about a prompt; raises UserError for an endpoint of no use, or whose tokens have other texts.

        Spaces are not compared, which tokenizers may leave out of a single token, or tokens with parts of characters.
        """
        answers = self._thread.submit(self._answers(tokens)).result()
        for token, (_, theirs) in zip(tokens[1:].tolist(), answers, strict=True):
            own = text_of(token)
            if theirs is not None and "\ufffd" not in theirs + own and theirs.strip() != own.strip():
                raise self._error(
                    f"token {token} is {own!r} for the model to train and {theirs!r} for the teacher; {_OTHER_TOKENS}"
                )

    def close(self) -> None:
        """Cancel every request, and end the thread."""
        self._thread.close(self._close())

    async def _all(self, conversations: Sequence[Conversation]) -> list[LogProbs]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._log_probs(*one)) for one in conversations]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _log_probs(self, prompt: TokenIds, following: TokenIds) -> LogProbs:
        answers = await self._answers(prompt, following)
        return log_probs([value for value, _ in answers[len(prompt) - 1 :]])

    async def _answers(self, *parts: TokenIds) -> list[_Answer]:
        """Return what the endpoint says about each token of the parts but the first, which has nothing before it."""
        session = self._session = self._session or self._endpoint.session()
        try:
            async with self._places:  # Those that wait for a place are arrays still, which take a tenth of the memory.
                ids = np.concatenate(parts).tolist()
                request = {
                    "model": self._options.model,
                    "prompt": ids,
                    "max_tokens": 1,
                    "temperature": 1.0,
                    "prompt_logprobs": 0,
                }
                body = await self._endpoint.ask(session, request, _ANSWER_BYTES + _TOKEN_BYTES * len(ids))
        except JudgeSetupError as error:
            raise UserError(f"{_FIELD}.{error}") from error
        except NoReply as error:
            raise self._error(str(error)) from error
        return self._read(body, ids)

    def _read(self, body: bytes, ids: Sequence[int]) -> list[_Answer]:
        shown_url = self._endpoint.shown_url
        try:
            entries = orjson.loads(body)["choices"][0].get("prompt_logprobs")
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
            raise self._error(f"{shown_url} answered no completion ({start_of(body)})") from error
        if not isinstance(entries, list):
            raise self._error(f"{shown_url} answered without prompt_logprobs; use a server that has them, as vLLM's")
        if len(entries) != len(ids):
            raise self._error(f"{shown_url} answered {len(entries)} log-probabilities for {len(ids)} tokens")
        try:
            answers = [one[str(token)] for token, one in zip(ids[1:], entries[1:], strict=True)]
            found = [(float(one["logprob"]), one.get("decoded_token")) for one in answers]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._error(f"{shown_url} answered about other tokens than it was asked; {_OTHER_TOKENS}") from error
        if not all(math.isfinite(value) for value, _ in found):
            raise self._error(f"{shown_url} answered a log-probability that is not finite; check its model")
        return found

    def _error(self, reason: str) -> UserError:
        return UserError(f"{_FIELD}: {reason}")

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
