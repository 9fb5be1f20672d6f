"""Rewards from a service of the user, which answers a POST with {"reward": number}."""

import asyncio
import json
import time
from pathlib import Path
from typing import Final

import httpx
import orjson

from longshore.api.addresses import redacted, without_credentials
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.answer_body import NOT_COMPRESSED, UnreadableBody, read_body
from longshore_runtime.rewards.kinds.kind import Kind, WorkerSide
from longshore_runtime.rewards.numbers import finite_reward
from longshore_runtime.rewards.row_json import to_json
from longshore_runtime.rewards.scoring import (
    ResponseScorer,
    RewardError,
    RewardFault,
    RewardSetupError,
    ScoreItem,
    ScoreResult,
)

_NO_ACCESS: Final = frozenset({401, 403})
_NO_SERVICE: Final = frozenset({404, 405})
_TOO_MANY: Final = 429
_MAX_ANSWER_BYTES: Final = 1 << 20
"""Largest size of an answer, which holds one number; parsed, it can take 20 times as much memory."""
_CERTIFICATES: Final = httpx.create_ssl_context()
"""TLS context for all services of this process: a worker would take 25 ms to read the authorities."""


class HttpKind(Kind):
    """Asks a service."""

    def scorer(self, function: RewardFunction, side: WorkerSide) -> "HttpScorer":
        """Prepare requests."""
        return HttpScorer(function, side.token)


class HttpScorer(ResponseScorer):
    """Asks a service of the user; no answer in time, 5xx and no connection are faults: worth another attempt."""

    def __init__(self, function: RewardFunction, token: Path | None) -> None:
        """Prepare requests; `token`: file with a bearer token, read again for every call so that it may rotate."""
        assert function.http is not None, "validation asks for it"
        self._name, self._url, self._timeout_s = function.name, function.http.url, function.limit_s
        self._shown_url = without_credentials(self._url)
        self._token = token
        self._runner = asyncio.Runner()
        # One limit for all of a call, in `_post`.
        self._client = httpx.AsyncClient(timeout=None, verify=_CERTIFICATES)

    def score(self, item: ScoreItem) -> ScoreResult:
        """Ask the service once; the caller retries faults. Called from a thread without an event loop."""
        body = {
            "prompt": item.prompt,
            "response": item.response,
            "answer": item.answer,
            "row": item.row,
            "is_cut": item.is_cut,
            "state": None if item.state is None else orjson.Fragment(item.state),
        }
        who = f"reward {self._name}: {item.sample}: the service"
        started_s = time.monotonic()
        try:
            status, answer = self._runner.run(self._post(to_json(body)))
        except TimeoutError as error:
            raise RewardFault(f"{who} did not answer within {self._timeout_s:g} s") from error
        except httpx.TransportError as error:
            raise RewardFault(f"{who} cannot be reached ({redacted(str(error) or type(error).__name__)})") from error
        except UnreadableBody as error:
            raise RewardError(f"{who} answered with {error}") from error
        seconds = time.monotonic() - started_s
        if status in _NO_ACCESS:
            wants = "refuses this token" if self._token else "asks for a token, set this field"
            raise self._setup_error("tokenSecret", f"{status}: it {wants}")
        if status in _NO_SERVICE:
            raise self._setup_error("http.url", f"{status} to a POST")
        if status == _TOO_MANY or status >= 500:
            raise RewardFault(f"{who} answered {status}")
        return ScoreResult(_reward(status, answer, who), seconds)

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._client.aclose())
        self._runner.close()

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        """Return the status, and the body if the status is a success; raises UnreadableBody."""
        headers = {"Content-Type": "application/json", **NOT_COMPRESSED}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.read_text(encoding='utf-8').strip()}"
        async with (
            asyncio.timeout(self._timeout_s),
            self._client.stream("POST", self._url, content=body, headers=headers) as answer,
        ):
            if not answer.is_success:
                return answer.status_code, b""
            encoding = answer.headers.get("Content-Encoding")
            return answer.status_code, await read_body(answer.aiter_raw(), encoding, _MAX_ANSWER_BYTES)

    def _setup_error(self, field: str, answer: str) -> RewardSetupError:
        return RewardSetupError(f"reward.functions[{self._name}].{field}: {self._shown_url} answered {answer}")


def _reward(status: int, answer: bytes, who: str) -> float:
    try:
        value = json.loads(answer)["reward"]
        if isinstance(value, list | dict):
            raise TypeError("not a number")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RewardError(f'{who} answered {status} without {{"reward": number}}') from error
    try:
        return finite_reward(value)
    except ValueError as error:
        raise RewardError(f"{who} {error}") from error
