"""The environments of a job: what becomes of a response between its turns.

    driver ── `start`, `give_turn`, `cancel` ──► thread "environment-pods": a task for each episode ──► pods
       ▲                                                  │
       └──────────── events of episodes ◄─────────────────┘

Every environment has pods of its own. A pod that is lost ends its episodes, which begin anew in the others, or in its
successor.

An episode that fails begins anew, as if nothing had happened, with the same seed. All decisions about responses are
those of the round protocol; a task only knows its own episode.
"""

import asyncio
import itertools
import math
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from longshore.api import contract
from longshore.api.environment import Environment, environment_of, environment_pods
from longshore.api.names import Component
from longshore.api.reasons import NoticeReason
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.checks.rows import functions_of
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.attempt import Attempt, EpisodeLimits, RunningEpisode
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.events import EpisodeGivenUp, EpisodeNews
from longshore_runtime.environments.link import EpisodeError, PodLink
from longshore_runtime.errors import UserError
from longshore_runtime.rewards.scoring import reads_state
from longshore_runtime.rewards.transports.pod import AddressOf, PodConnections, ServingPods

log = structlog.get_logger()

_TELL_EVERY_S: Final = 60.0
"""Seconds between two events about failures of an environment; the log has all of them."""


class EnvironmentPool:
    """The environments of a job. What it does not say itself comes as events."""

    def __init__(
        self,
        environments: Sequence[Environment],
        connections: PodConnections,
        conversations: Conversations,
        limits: EpisodeLimits,
        put: Callable[[EpisodeNews], None],
        notify: Callable[[str, str], None] = lambda reason, message: None,
        state_readers: Sequence[RewardFunction] = (),
    ) -> None:
        """Connect to the pods.

        Args:
            environments: environments of the job.
            connections: connections to their pods.
            conversations: conversations of the model.
            limits: limits of every episode.
            put: takes events, in any thread.
            notify: takes reasons with messages, in any thread.
            state_readers: reward functions that may read the final state of an environment.
        """
        self._environments = tuple(environments)
        self._connections = connections
        self._conversations = conversations
        self._limits = limits
        self._put = put
        self._notify = notify
        self._state_readers = state_readers
        self._notified_s: dict[str, float] = {}
        """When the last failure of an environment was told, by its name."""
        self._numbers = itertools.count()
        self._attempts = itertools.count()
        self._running: dict[int, RunningEpisode] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Tasks of the episodes, which the thread of the connections alone uses."""
        self._open: Counter[int] = Counter()
        """Open episodes by pod."""
        self._waiting: defaultdict[str, deque[asyncio.Event]] = defaultdict(deque)
        """Episodes that wait for a place, by environment, the first to come first."""
        asyncio.run_coroutine_threadsafe(self._connect(), connections.loop).result()

    def environment_of(self, domain: str) -> Environment | None:
        """Return the environment in which responses to rows of a domain act."""
        return environment_of(self._environments, domain)

    def rehearse(self, records: Iterable[PromptRecord], limit_s: float) -> None:
        """Begin an episode of each environment with its first row, which finds what would fail for every other row.

        Raises:
            UserError: an environment cannot begin within `limit_s`, or the chat template does not suit it.
        """
        first: dict[str, PromptRecord] = {}
        for record in records:
            if (environment := self.environment_of(record.domain)) is not None:
                first.setdefault(environment.name, record)
        trying = asyncio.run_coroutine_threadsafe(self._rehearse(list(first.values())), self._connections.loop)
        try:
            trying.result(limit_s)
        except TimeoutError as error:
            trying.cancel()
            raise UserError(
                f"environments: no pod has taken an episode within {limit_s:,.0f} s; make room for the pods, lower "
                "pods.count or pods.resources, or let a server listen at its server.port"
            ) from error

    def start(self, response: ResponseId, record: PromptRecord, seed: int) -> int:
        """Begin an episode; returns its number."""
        environment = self.environment_of(record.domain)
        assert environment is not None, "the round asks for episodes of such rows alone"
        wants_state = bool(functions_of(record.domain, self._state_readers))
        episode = RunningEpisode(next(self._numbers), response, environment, record, seed, wants_state)
        self._connections.loop.call_soon_threadsafe(self._begin, episode)
        return episode.number

    def give_turn(self, number: int, completion: Completion) -> None:
        """Give the turn with which a response ends now to its environment."""
        self._connections.loop.call_soon_threadsafe(self._take_turn, number, completion)

    def cancel(self, numbers: Sequence[int]) -> None:
        """End episodes; no event follows but those that are on their way."""
        self._connections.loop.call_soon_threadsafe(self._cancel, tuple(numbers))

    async def _connect(self) -> None:
        self._links = defaultdict[str, list[PodLink]](list)
        for pod, environment in enumerate(environment_pods(self._environments)):
            self._links[environment.name].append(PodLink(self._connections, pod, self._wake_all))

    def _begin(self, episode: RunningEpisode) -> None:
        task = asyncio.ensure_future(self._live(episode))
        self._running[episode.number], self._tasks[episode.number] = episode, task
        task.add_done_callback(lambda _: self._forget(episode.number))

    def _forget(self, number: int) -> None:
        del self._running[number], self._tasks[number]

    def _take_turn(self, number: int, completion: Completion) -> None:
        if number in self._running:
            self._running[number].turns.put_nowait(completion)

    def _cancel(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._tasks:
                self._tasks[number].cancel()

    async def _rehearse(self, records: Sequence[PromptRecord]) -> None:
        async def begin(attempt: Attempt) -> None:
            await attempt.begin()

        for place, record in enumerate(records):
            environment = self.environment_of(record.domain)
            assert environment is not None, "it is a row of an environment"
            response = ResponseId(Draw(0, place), 0)
            episode = RunningEpisode(next(self._numbers), response, environment, record, seed=0)
            try:
                await self._repeated(episode, begin, ends=True)
            except EpisodeError as error:
                raise UserError(str(error)) from error

    async def _live(self, episode: RunningEpisode) -> None:
        """Follow an episode to its end."""
        where = (episode.response, episode.number)
        try:
            await self._repeated(episode, Attempt.run)
        except EpisodeError as error:
            failures = episode.take_failures()
            self._put(EpisodeGivenUp(*where, str(error), error.is_users_mistake, failures=failures))
        except Exception as error:
            log.exception("an episode cannot be followed")
            self._put(EpisodeGivenUp(*where, f"{type(error).__name__}: {error}", is_users_mistake=False))

    async def _repeated(
        self, episode: RunningEpisode, follow: Callable[[Attempt], Awaitable[None]], *, ends: bool = False
    ) -> None:
        """Attempt an episode until it succeeds; raises the EpisodeError of the last attempt."""
        while True:
            try:
                return await self._attempt(episode, follow, ends=ends)
            except EpisodeError as error:
                name, source = episode.environment.name, episode.record.source or f"row {episode.record.row}"
                log.warning("episode failed", environment=name, row=source, reason=str(error))
                reason = f"environment {name}: {source}: {str(error).removeprefix(f'environment {name}: ')}"
                self._tell(name, reason)
                episode.failures.append(error.cause)
                if error.is_users_mistake or episode.num_restarts == episode.environment.retries:
                    raise EpisodeError(reason, is_users_mistake=error.is_users_mistake) from error
                episode.num_restarts += 1

    def _tell(self, environment: str, message: str) -> None:
        """Tell of a failure, unless another one of the environment was told lately."""
        now_s = time.monotonic()
        if now_s - self._notified_s.get(environment, -math.inf) >= _TELL_EVERY_S:
            self._notified_s[environment] = now_s
            self._notify(NoticeReason.ENVIRONMENT_FAILED, message)

    async def _attempt(
        self, episode: RunningEpisode, follow: Callable[[Attempt], Awaitable[None]], *, ends: bool
    ) -> None:
        """Follow an episode once; with `ends`, it is closed where it would go on. Raises EpisodeError."""
        async with self._place(episode.environment) as link:
            number = next(self._attempts)
            is_open = True
            try:
                await follow(Attempt(episode, number, link, self._conversations, self._limits, self._put))
                is_open = ends
            finally:
                if is_open:
                    await asyncio.shield(link.close_episode(number))

    @asynccontextmanager
    async def _place(self, environment: Environment) -> AsyncIterator[PodLink]:
        """Wait for a pod with room for an episode, and take it."""
        name = environment.name
        while (link := self._roomiest(environment)) is None:
            turn = asyncio.Event()
            self._waiting[name].append(turn)
            try:
                await turn.wait()
            except asyncio.CancelledError:
                if turn.is_set():
                    self._wake(name)  # Another one may have the place.
                else:
                    self._waiting[name].remove(turn)
                raise
        self._open[link.pod] += 1
        try:
            yield link
        finally:
            self._open[link.pod] -= 1
            self._wake(name)

    def _roomiest(self, environment: Environment) -> PodLink | None:
        """Return the connected pod of an environment with the fewest episodes; None: none has room."""
        up = (link for link in self._links[environment.name] if link.is_up)
        link = min(up, key=lambda one: self._open[one.pod], default=None)
        return link if link is not None and self._open[link.pod] < environment.most_episodes else None

    def _wake(self, environment: str) -> None:
        """Wake the first episode that waits for a place of this environment."""
        if self._waiting[environment]:
            self._waiting[environment].popleft().set()

    async def _wake_all(self) -> None:
        """Wake all that wait: a pod is connected, and whoever finds no room waits again."""
        for waiting in self._waiting.values():
            while waiting:
                waiting.popleft().set()


def hosts(environments: Sequence[Environment], address_of: AddressOf) -> ServingPods:
    """Return the environment pods of a job.

    Args:
        environments: environments of the job.
        address_of: returns the address of an environment pod by its index.
    """
    tokens, pods = Path(os.environ[contract.ENV_ENVIRONMENT_TOKENS]), environment_pods(environments)
    port = contract.ENVIRONMENT_PORT
    return ServingPods(Component.ENVIRONMENT, len(pods), address_of, lambda pod: tokens / pods[pod].name, port)


def environment_pool(
    spec: RLJobSpec,
    pods: ServingPods,
    tokenizer: Any,
    put: Callable[[EpisodeNews], None],
    notify: Callable[[str, str], None],
    resources: ExitStack,
) -> EnvironmentPool:
    """Return the environments of a job.

    Args:
        spec: job.
        pods: pods of its environments.
        tokenizer: tokenizer of the model.
        put: takes events, in any thread.
        notify: takes reasons with messages, in any thread.
        resources: closes the connections.
    """
    connections = PodConnections(pods)
    resources.callback(connections.close)
    limits = EpisodeLimits(spec.algorithm.max_response_tokens, spec.model.max_context_tokens)
    conversations = Conversations(spec.data.chat, tokenizer)
    readers = [one for one in spec.reward.functions if reads_state(one)]
    return EnvironmentPool(spec.environments, connections, conversations, limits, put, notify, readers)
