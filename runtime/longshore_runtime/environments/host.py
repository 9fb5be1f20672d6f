"""All episodes of one connection: reads the questions of the coordinator and answers them from processes.

    coordinator ── WebSocket ──► `receive` ── task of the question ──► pipe ──► process of the episode
                ◄── `send` ─────────────────────────────────────────── pipe ◄──

Everything runs in the event loop of the pod. What processes write is checked before it is sent: an episode can break
itself, and nothing else.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from longshore.api.environment import Environment
from longshore_runtime.environments.episode import CALL_ENDED
from longshore_runtime.environments.pod_protocol import (
    Act,
    Acted,
    Answer,
    Asked,
    Broken,
    Close,
    FailureCause,
    Finish,
    Finished,
    Open,
    Opened,
    Question,
    decode_answer,
    decode_question,
    encode,
)
from longshore_runtime.environments.processes import CannotStart, EpisodeProcess, ProcessEnded, Template
from longshore_runtime.rewards.failure_text import error_text
from longshore_runtime.rewards.scoring import MAX_SENTENCE
from longshore_runtime.rewards.transports.pod_protocol import BadMessage

log = structlog.get_logger()

_ANSWERS: Final = {Open: Opened | Asked, Act: Acted | Asked, Finish: Finished}


class _CutOff(Exception):
    """Raised when an episode has taken too long; the message is one sentence that names the field."""


class _Episode:
    """An episode, whose process is there once it has begun."""

    def __init__(self, number: int, template: Template) -> None:
        """Begin without a process."""
        self.number = number
        self.template = template
        self.process: EpisodeProcess | None = None
        self.spent_s = 0.0
        """Seconds that the environment has taken so far."""
        self.task: asyncio.Task[None] | None = None
        """Work on the open question."""
        self.is_closed = False

    @property
    def environment(self) -> Environment:
        """Environment with its limits."""
        return self.template.environment

    def close(self) -> None:
        """End the process, which an open question notices."""
        self.is_closed = True
        if self.process is not None:
            if self.task is not None:
                self.process.kill()
            else:
                self.process.close()
                self.process = None


class EnvironmentHost:
    """The episodes of one connection."""

    def __init__(self, templates: Mapping[str, Template], send: Callable[[bytes], Awaitable[None]]) -> None:
        """Take the templates of the pod by the names of their environments, and the way to the coordinator."""
        self._templates = templates
        self._send = send
        self._episodes: dict[int, _Episode] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def receive(self, data: bytes) -> None:
        """Begin to answer a question; raises BadMessage."""
        question = decode_question(data)
        if isinstance(question, Close):
            if (closed := self._episodes.pop(question.episode, None)) is not None:
                closed.close()
            return
        episode = self._opened(question) if isinstance(question, Open) else self._episodes.get(question.episode)
        if episode is None:
            work = self._answer(Broken(question.episode, "the pod has no such episode, or not any more", cause="pod"))
        elif episode.task is not None:
            raise BadMessage(f"episode {question.episode} has two questions open")
        else:
            work = self._work(episode, question, data)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if episode is not None:
            episode.task = task

    def close(self) -> None:
        """End all episodes; those that have not begun end as soon as they do."""
        for episode in self._episodes.values():
            episode.close()
        self._episodes.clear()

    def _opened(self, question: Open) -> _Episode:
        if question.episode in self._episodes:
            raise BadMessage(f"episode {question.episode} is opened twice")
        if question.environment not in self._templates:
            raise BadMessage(f"the pod has no environment {question.environment!r}")
        episode = _Episode(question.episode, self._templates[question.environment])
        self._episodes[question.episode] = episode
        return episode

    async def _work(self, episode: _Episode, question: Open | Act | Finish, data: bytes) -> None:
        """Answer a question, and end the episode if it is over."""
        try:
            answer = await self._answer_of(episode, question, data)
        except Exception as error:
            log.exception("an episode has failed in the pod", environment=episode.environment.name)
            name, problem = episode.environment.name, error_text(error)
            answer = Broken(episode.number, f"environment {name}: the pod failed ({problem})", cause="pod")
        episode.task = None
        is_closed = episode.is_closed
        if is_closed or isinstance(answer, Broken | Finished):
            episode.close()
            self._forget(episode)
        if not is_closed:
            await self._answer(answer)

    def _forget(self, episode: _Episode) -> None:
        if self._episodes.get(episode.number) is episode:
            del self._episodes[episode.number]

    async def _answer_of(self, episode: _Episode, question: Open | Act | Finish, data: bytes) -> Answer:
        name = episode.environment.name
        cause: FailureCause
        try:
            if isinstance(question, Open):
                episode.process = await episode.template.fork(lambda: not episode.is_closed)
                if episode.is_closed:
                    raise CannotStart("nobody wants the episode any more")
            return await self._asked(episode, question, data)
        except CannotStart as error:
            problem, is_users_mistake = str(error)[:MAX_SENTENCE], error.is_users_mistake
            return Broken(episode.number, problem, is_users_mistake=is_users_mistake, cause="start")
        except _CutOff as error:
            problem, cause = str(error), "timeout"
        except ProcessEnded as error:
            problem = f"environment {name}: in {_code(episode.environment, question)}, its process {error}"
            cause = "process"
        except BadMessage as error:
            problem, cause = f"environment {name}: its process wrote what is no answer ({error})", "result"
        return Broken(episode.number, problem[:MAX_SENTENCE], cause=cause)

    async def _asked(self, episode: _Episode, question: Open | Act | Finish, data: bytes) -> Answer:
        """Return what the process answers. Raises: _CutOff, ProcessEnded, BadMessage."""
        assert episode.process is not None, "an episode has begun before its second question"
        episode.process.write(data.replace(b"\n", b" ") + b"\n")
        line = await self._line(episode, episode.process, question)
        for _ in question.calls if isinstance(question, Act) else ():
            if line != CALL_ENDED:
                break
            line = await self._line(episode, episode.process, question)
        answer = decode_answer(line)
        if answer.episode != question.episode or not isinstance(answer, _ANSWERS[type(question)] | Broken):
            raise BadMessage(f"a message of kind {answer.kind}")
        return answer

    async def _line(self, episode: _Episode, process: EpisodeProcess, question: Question) -> bytes:
        limits, started_s = episode.environment, time.monotonic()
        left_s = limits.episode_timeout_s - episode.spent_s
        try:
            async with asyncio.timeout(min(limits.call_timeout_s, left_s)):
                return await process.read()
        except TimeoutError as error:
            where, what = f"environments[{limits.name}]", _code(limits, question)
            if left_s <= limits.call_timeout_s:
                raise _CutOff(
                    f"{where}.episodeTimeoutSeconds: the environment took {limits.episode_timeout_s:g} s for an "
                    f"episode, the last of them in {what}; make it faster, or raise the limit"
                ) from error
            raise _CutOff(
                f"{where}.callTimeoutSeconds: {what} did not end within {limits.call_timeout_s:g} s; make it faster, "
                "or raise the limit"
            ) from error
        finally:
            episode.spent_s += time.monotonic() - started_s

    async def _answer(self, answer: Answer) -> None:
        with contextlib.suppress(ConnectionError):  # Whoever reads the connection notices.
            await self._send(encode(answer))


def _code(environment: Environment, question: Question) -> str:
    """Return what code of the user a question runs."""
    if environment.is_agent:
        return "the agent"
    match question:
        case Open():
            return "reset"
        case Act(calls=[]):
            return "reply"
        case Act(calls=calls):
            names = sorted({call.name for call in calls})
            return f"tool {names[0]}" if len(names) == 1 else f"one of the tools {', '.join(names[:8])}"
        case _:
            return "get_state or get_reward"
