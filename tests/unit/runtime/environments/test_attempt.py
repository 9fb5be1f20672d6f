"""What an attempt at an episode makes of turns that end in other ways than the chat template's."""

import asyncio
from typing import Any

import pytest

from longshore.api.environment import Environment
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion, FinishReason
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.environments.attempt import Attempt, EpisodeLimits, RunningEpisode
from longshore_runtime.environments.events import EpisodeNews, EpisodeOver, TurnWanted
from longshore_runtime.environments.link import EpisodeError
from longshore_runtime.environments.pod_protocol import (
    Act,
    Acted,
    Asked,
    AskedMessage,
    Finish,
    Finished,
    Observation,
    Open,
    Opened,
    ToolCall,
)
from longshore_runtime.trajectories.trajectory import Trajectory, token_ids
from tests.unit.runtime.environments.chat_templates import GEMMA, SMOL
from tests.unit.runtime.environments.test_conversation import conversations, encoded

GAME = Environment.model_validate({"name": "game", "kind": "Python", "importPath": "games:Game"})


class Talker:
    """A link to an environment that says the same to every turn."""

    def __init__(self, says: str) -> None:
        self._says = says

    async def ask(self, question: Any, kind: type, limit_s: float) -> Any:
        match question:
            case Open(number):
                return Opened(number, None, [])
            case Act(number):
                return Acted(number, [Observation("user", self._says)], 0)
            case Finish(number):
                return Finished(number, 1.0)


def played(turn: str, says: str, max_response_tokens: int = 256) -> list[EpisodeNews]:
    """What is heard of an episode whose first turn is this text, and whose second does not come."""
    messages = ({"role": "user", "content": "Guess."},)
    record = PromptRecord(0, "", token_ids([1]), "", messages=messages)
    heard: list[EpisodeNews] = []
    enough = asyncio.Event()

    def hear(news: EpisodeNews) -> None:
        heard.append(news)
        if isinstance(news, EpisodeOver) or (isinstance(news, TurnWanted) and news.turn):
            enough.set()

    async def play() -> None:
        episode = RunningEpisode(0, ResponseId(Draw(0, 0), 0), GAME, record, seed=0)
        limits = EpisodeLimits(max_response_tokens, 4096)
        link: Any = Talker(says)
        attempt = Attempt(episode, 0, link, conversations(SMOL), limits, hear)
        tokens = encoded(turn)
        sampled = Trajectory.sampled(0, tokens, [-1.0] * len(tokens))
        episode.turns.put_nowait(Completion("one", sampled, FinishReason.STOP, 1))
        running = asyncio.ensure_future(attempt.run())
        await enough.wait()
        running.cancel()

    asyncio.run(play())
    return heard


def test_a_turn_with_another_end_token_is_closed_as_the_template_closes_it() -> None:
    (_, ordinary), (_, other) = played("5<|im_end|>", "higher"), played("5<bos>", "higher")
    assert isinstance(ordinary, TurnWanted) and isinstance(other, TurnWanted)
    turn, closed = encoded("5<|im_end|>"), encoded("5<bos><|im_end|>")
    assert ordinary.trajectory.tokens.tolist()[: len(turn)] == turn
    assert other.trajectory.tokens.tolist() == [*closed, *ordinary.trajectory.tokens.tolist()[len(turn) :]]
    assert other.trajectory.mask.tolist()[: len(closed)] == [True] * (len(closed) - 1) + [False]


def test_what_cannot_fit_any_more_ends_the_episode_and_is_not_kept() -> None:
    (over,) = [one for one in played("5<|im_end|>", "x" * 100_000, 64) if isinstance(one, EpisodeOver)]
    assert over.is_cut and over.episode.reward == 1.0
    (branch,) = over.episode.branches
    assert [one["role"] for one in branch.messages] == ["assistant"]


class Asker:
    """A link to an agent that asks for these conversations, one after the other."""

    def __init__(self, *conversations: list[AskedMessage]) -> None:
        self._conversations = list(conversations)

    async def ask(self, question: Any, kind: type, limit_s: float) -> Any:
        return Asked(0, None, self._conversations.pop(0), [])


def failure(*conversations_of_agent: list[AskedMessage]) -> EpisodeError:
    """How an episode fails whose agent asks for these conversations, with a template whose roles alternate."""
    record = PromptRecord(0, "", token_ids([1]), "", messages=({"role": "user", "content": "Guess."},))

    async def play() -> None:
        agent = Environment.model_validate({"name": "agent", "kind": "Agent", "importPath": "agents:run"})
        episode = RunningEpisode(0, ResponseId(Draw(0, 0), 0), agent, record, seed=0)
        link: Any = Asker(*conversations_of_agent)
        attempt = Attempt(episode, 0, link, conversations(GEMMA), EpisodeLimits(256, 4096), lambda news: None)
        tokens = encoded("5<|im_end|>")
        for _ in conversations_of_agent[1:]:
            sampled = Trajectory.sampled(0, tokens, [-1.0] * len(tokens))
            episode.turns.put_nowait(Completion("one", sampled, FinishReason.STOP, 1))
        await attempt.run()

    with pytest.raises(EpisodeError) as error:
        asyncio.run(play())
    return error.value


def test_a_later_conversation_that_the_template_refuses_fails_its_episode_alone() -> None:
    question = AskedMessage("user", "Guess.")
    assert failure([question, question]).is_users_mistake
    later = failure([question], [question, question])
    assert "roles must alternate" in str(later) and not later.is_users_mistake


def test_calls_of_an_agent_count_before_they_are_tokenized() -> None:
    call = ToolCall("guess", {"why": "x" * 1_000_000})
    made_up = [AskedMessage("user", "?"), AskedMessage("assistant", "", None, [call]), AskedMessage("user", "?")]
    assert "longer than model.maxContextTokens allows" in str(failure(made_up))
