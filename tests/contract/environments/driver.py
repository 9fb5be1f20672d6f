"""A driver of episodes: an environment pool against real pods, and an engine that says what a test wants."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from longshore.api.environment import Environment
from longshore.api.names import Component
from longshore.api.reward import RewardFunction, RewardKind
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.backends.tiny_model import EOS_ID, build_tokenizer
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.attempt import EpisodeLimits
from longshore_runtime.environments.conversation import Conversations
from longshore_runtime.environments.events import EpisodeNews, TurnWanted
from longshore_runtime.environments.pool import EnvironmentPool
from longshore_runtime.rewards.transports.pod import PodConnections, ServingPods
from longshore_runtime.trajectories.trajectory import Trajectory, token_ids
from tests.contract.environments.environment_pods import PATIENT_S, TOKEN

ROW: Final = {"low": "a", "high": "h", "secret": "c"}
LIMITS: Final = EpisodeLimits(max_response_tokens=32, max_context_tokens=64)
TOKENIZER: Final = build_tokenizer()
READER: Final = RewardFunction(name="score", kind=RewardKind.PYTHON, import_path="users:score")


class Driver:
    """A pool, and an engine that says what a test wants."""

    def __init__(
        self,
        pool: EnvironmentPool,
        events: "queue.SimpleQueue[EpisodeNews]",
        tokenizer: Any = TOKENIZER,
        end: Sequence[int] = (EOS_ID,),
        *,
        is_chat: bool = False,
    ) -> None:
        self._is_chat = is_chat
        self.pool = pool
        self.tokenizer = tokenizer
        self._end = end
        self._events = events
        self._trajectories: dict[int, Trajectory] = {}
        self._num_responses = 0

    def start(self, prompt: str = "a-h?", domain: str = "", **row: Any) -> int:
        """Begin an episode; returns its number."""
        response = ResponseId(Draw(0, 0), self._num_responses)
        self._num_responses += 1
        of_row = replace(record(prompt, **(row or ROW)), domain=domain)
        if self._is_chat:
            of_row = replace(of_row, messages=({"role": "user", "content": prompt},))
        return self.pool.start(response, of_row, seed=7)

    def hear(self) -> EpisodeNews:
        """The next news."""
        news = self._events.get(timeout=PATIENT_S)
        if isinstance(news, TurnWanted):
            self._trajectories[news.number] = news.trajectory
        return news

    def say(self, number: int, text: str, reason: FinishReason = FinishReason.STOP) -> EpisodeNews:
        """Sample a turn; returns what is heard next."""
        self.give(number, text, reason)
        return self.hear()

    def give(self, number: int, text: str, reason: FinishReason = FinishReason.STOP) -> None:
        """Sample a turn."""
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), *self._end]
        self._trajectories[number] += Trajectory.sampled(0, tokens, [-1.0] * len(tokens))
        self.pool.give_turn(number, Completion("one", self._trajectories[number], reason, 1))


def record(prompt: str, **fields: Any) -> PromptRecord:
    tokens = token_ids(TOKENIZER.encode(prompt, add_special_tokens=False))
    return PromptRecord(0, prompt, tokens, "", fields=fields, source="row 1")


@contextmanager
def driving(
    tmp_path: Path,
    port: int,
    *environments: Environment,
    conversations: Conversations | None = None,
    hosts: Sequence[str] = ("127.0.0.1",),
    **model: Any,
) -> Iterator[Driver]:
    """A driver whose job has one pod for each environment, all at this port, or at these hosts.

    `model`: tokenizer and end tokens of another model, and limits.
    """
    token = tmp_path / "token"
    token.write_text(TOKEN)
    events: queue.SimpleQueue[EpisodeNews] = queue.SimpleQueue()
    pods = ServingPods(Component.ENVIRONMENT, 1, lambda index: hosts[index % len(hosts)], lambda index: token, port)
    connections = PodConnections(pods)
    limits = model.pop("limits", LIMITS)
    try:
        pool = EnvironmentPool(
            environments,
            connections,
            conversations or Conversations(None, TOKENIZER),
            limits,
            events.put,
            state_readers=[READER],
        )
        yield Driver(pool, events, is_chat=conversations is not None, **model)
    finally:
        connections.close()
