"""An OpenAI-compatible HTTP endpoint: what is tried again, and a sentence for every way in which it can fail."""

from http import HTTPStatus
from typing import Any, Final

import aiohttp
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential

from longshore.api.addresses import redacted, without_credentials
from longshore_runtime.judge.errors import JudgeSetupError, NoReply, NoReplyYet, NotThere
from longshore_runtime.judge.options import RemoteJudgeOptions
from longshore_runtime.rewards.answer_body import NOT_COMPRESSED, UnreadableBody, read_body

log = structlog.get_logger()

_LONGEST_WAIT_S: Final = 10.0
_SHOWN_CHARACTERS: Final = 200


class Endpoint:
    """Asks one address. The bearer token reaches no message and no log."""

    def __init__(self, url: str, options: RemoteJudgeOptions, *, url_field: str) -> None:
        """Keep the options; connects to nothing yet.

        Args:
            url: full address, in place of that of the options.
            options: token and limits.
            url_field: field with the address, for messages.
        """
        self._url_field = url_field
        self._url = url
        self.shown_url = without_credentials(url)
        self._options = options

    def session(self) -> aiohttp.ClientSession:
        """Return a session for `ask`, within an event loop."""
        timeout = aiohttp.ClientTimeout(total=self._options.timeout_s, sock_connect=self._options.connect_timeout_s)
        connector = aiohttp.TCPConnector(limit=0)  # Callers limit: waiting for them costs a try no time.
        return aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False)

    async def ask(self, session: aiohttp.ClientSession, request: dict[str, Any], max_answer_bytes: int) -> bytes:
        """Return the body of the answer to a request.

        Raises:
            NoReply, NoReplyYet: there is none.
            JudgeSetupError: there never can be one; begins with the field.
        """
        options = self._options
        tries = AsyncRetrying(
            retry=retry_if_exception_type(NoReplyYet),
            stop=stop_after_attempt(options.num_tries),
            wait=wait_exponential(multiplier=options.retry_wait_s, max=_LONGEST_WAIT_S),
            before_sleep=lambda state: log.warning("the endpoint is asked again", reason=_reason(state)),
            reraise=True,
        )
        try:
            return await tries(self._try, session, request, max_answer_bytes)
        except NoReplyYet as error:
            raise type(error)(f"{error}; tries: {options.num_tries}") from error

    async def _try(self, session: aiohttp.ClientSession, request: dict[str, Any], max_answer_bytes: int) -> bytes:
        try:
            # A redirect would turn the request into another, and might carry the token elsewhere.
            async with session.post(
                self._url, json=request, headers=self._headers(), allow_redirects=False
            ) as response:
                status, encoding = response.status, response.headers.get("Content-Encoding")
                try:
                    body = await read_body(response.content.iter_any(), encoding, max_answer_bytes)
                except UnreadableBody as error:
                    if status == HTTPStatus.OK:
                        raise NoReply(f"{self.shown_url} answered with {error}") from error
                    body = str(error).encode()
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            raise NotThere(f"{self.shown_url} cannot be reached ({redacted(str(error))})") from error
        except TimeoutError as error:
            raise NoReplyYet(f"{self.shown_url} did not answer within {self._options.timeout_s:g} s") from error
        except aiohttp.InvalidURL as error:
            raise JudgeSetupError(f"{self._url_field}: {self.shown_url!r} is no address") from error
        except ValueError as error:  # Of aiohttp, when both an address and a header say who asks.
            why = "has credentials, and tokenSecret is set: remove one of them"
            raise JudgeSetupError(f"{self._url_field}: {self.shown_url} {why}") from error
        except aiohttp.ClientError as error:
            raise NoReplyYet(f"{self.shown_url} cannot be reached ({redacted(str(error))})") from error
        if status == 429 or status >= 500:
            raise NoReplyYet(f"{self.shown_url} answered {status} ({start_of(body)})")
        if status in (401, 403):
            raise JudgeSetupError(self._refused(status))
        if status != 200:
            raise NoReply(f"{self.shown_url} answered {status} ({start_of(body)})")
        return body

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
            return f"tokenSecret: {self.shown_url} answered {status}: it asks for a token, set this field"
        return f"tokenSecret: {self.shown_url} answered {status}: it refuses this token"


def _reason(state: RetryCallState) -> str:
    return "" if state.outcome is None else str(state.outcome.exception())


def start_of(body: bytes) -> str:
    """Return the first words of an answer, for a message."""
    text = " ".join(body[: 4 * _SHOWN_CHARACTERS].decode("utf-8", errors="replace").split())
    return text[:_SHOWN_CHARACTERS] or "an empty body"
