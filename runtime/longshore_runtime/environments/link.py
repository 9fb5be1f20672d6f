"""The connection to the environments of one pod, shared by all their episodes. Runs in an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import structlog

from longshore_runtime.environments import pod_protocol
from longshore_runtime.environments.pod_protocol import Answer, Broken, Close, FailureCause, Open, Question
from longshore_runtime.rewards.scoring import WorkerDied
from longshore_runtime.rewards.transports.pod import PodConnections, received
from longshore_runtime.rewards.transports.pod_protocol import BadMessage, Hello, decode, printable

log = structlog.get_logger()

_HELLO_LIMIT_S: Final = 10.0
_CLOSE_LIMIT_S: Final = 1.0
"""Seconds to wait for a pod that does not read; it gets the message when it does."""
_PAUSE_S: Final = 0.5
"""Seconds between the end of a connection and the next attempt at one."""


class EpisodeError(Exception):
    """Raised when an episode has failed; the message is one sentence."""

    def __init__(self, reason: str, *, is_users_mistake: bool = False, cause: FailureCause = "conversation") -> None:
        """Say whether every other episode of the environment would fail alike, and why this one did."""
        super().__init__(reason)
        self.cause = cause
        self.is_users_mistake = is_users_mistake


def encoded(question: Question) -> bytes:
    """Write a question; raises EpisodeError for one that no pod takes."""
    try:
        data = pod_protocol.encode(question)
    except TypeError as error:
        raise EpisodeError(f"the row cannot be sent to its environment: {error}", is_users_mistake=True) from error
    if len(data) > pod_protocol.MAX_MESSAGE_BYTES:
        most = pod_protocol.MAX_MESSAGE_BYTES >> 20
        raise EpisodeError(
            f"what is sent to its environment is {len(data) >> 20} MiB large, and at most {most} MiB can be sent",
            is_users_mistake=isinstance(question, Open),
        )
    return data


class PodLink:
    """Keeps connected to a pod: one that is lost has ended its episodes, and its successor begins others."""

    def __init__(self, connections: PodConnections, pod: int, on_connected: Callable[[], Awaitable[None]]) -> None:
        """Begin to look for the pod; called in the loop of the connections."""
        self.pod = pod
        self._on_connected = on_connected
        self._connections = connections
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        """Answers that are awaited, by episode."""
        self._task = asyncio.ensure_future(self._live())

    @property
    def is_up(self) -> bool:
        """Whether episodes can begin here."""
        return self._socket is not None

    async def ask(self, question: Question, kinds: tuple[type[Answer], ...], limit_s: float) -> Answer:
        """Return the answer, which is of one of these kinds.

        Raises:
            EpisodeError: the episode has failed, the pod is lost, or it does not answer in time.
        """
        if self._socket is None:
            raise EpisodeError(f"environment pod {self.pod} is lost", cause="pod")
        data = encoded(question)
        number = question.episode
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit_s):
                await self._socket.send_bytes(data)  # Waits for a pod that does not read.
                found = await answer
        except TimeoutError as error:
            problem = f"environment pod {self.pod} does not answer within {limit_s:g} s"
            raise EpisodeError(problem, cause="timeout") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EpisodeError(f"environment pod {self.pod} is lost ({error})", cause="pod") from error
        finally:
            self._asked.pop(number, None)
        if isinstance(found, Broken):
            raise EpisodeError(printable(found.error), is_users_mistake=found.is_users_mistake, cause=found.cause)
        if not isinstance(found, kinds):
            raise EpisodeError(f"environment pod {self.pod} answers something else than was asked", cause="pod")
        return found

    async def close_episode(self, episode: int) -> None:
        """End an episode, if the pod is still there."""
        if self._socket is not None:
            try:
                async with asyncio.timeout(_CLOSE_LIMIT_S):
                    await self._socket.send_bytes(pod_protocol.encode(Close(episode)))
            except (aiohttp.ClientError, OSError) as error:
                reason = str(error) or type(error).__name__
                log.info("an episode ends with its pod", pod=self.pod, reason=reason)

    async def _live(self) -> None:
        while True:
            reason = "its connection failed"
            try:
                path, size = pod_protocol.PATH, pod_protocol.MAX_MESSAGE_BYTES
                async with await self._connections.connect(self.pod, path, size) as socket:
                    async with asyncio.timeout(_HELLO_LIMIT_S):
                        decode(Hello, await received(socket))
                    self._socket = socket
                    await self._on_connected()
                    await self._receive(socket)
            except (WorkerDied, aiohttp.ClientError, OSError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            except BadMessage as error:
                reason = f"what it says cannot be read: {error}"
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                log.exception("the connection to an environment pod failed")
            finally:
                self._lose(reason)
            log.warning("an environment pod is lost", pod=self.pod, reason=reason)
            await asyncio.sleep(_PAUSE_S)  # A pod that lets everybody in and then hangs up is asked no more often.

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Read answers until the connection ends; one that nobody waits for is dropped."""
        while True:
            answer = pod_protocol.decode_answer(await received(socket))
            waiting = self._asked.get(answer.episode)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _lose(self, reason: str) -> None:
        self._socket = None
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(EpisodeError(f"environment pod {self.pod} is lost: {reason}", cause="pod"))
