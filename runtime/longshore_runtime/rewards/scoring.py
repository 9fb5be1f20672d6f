"""Inputs and results of reward functions, and the ways in which they can fail."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from longshore.api.reward import RewardFunction, RewardKind, Signature
from longshore.policy.adaptive_timeout import CaseRun, Seconds
from longshore_runtime.rewards.failure_text import one_line, shortened, shown
from longshore_runtime.rewards.numbers import MAX_REWARD
from longshore_runtime.sandbox.layers import LayerReport

MAX_CASES: Final = 65_536
MAX_SENTENCE: Final = 2_000
_MAX_RESPONSE: Final = 120
_MAX_ROW: Final = 200
_MAX_FIELD: Final = 60
"""Largest number of characters of a response, of a row and of a field of it in a message."""
Sentence = Annotated[str, Field(max_length=MAX_SENTENCE)]
ErrorKind = Literal["error", "setup", "fault", "broken"]


class RewardError(Exception):
    """Raised when a reward cannot be computed; the message is one sentence that names the reward and the sample."""

    kind: ErrorKind = "error"


class RewardSetupError(RewardError):
    """Raised when the reward cannot be computed for any sample; the message is one sentence that names the field."""

    kind = "setup"


class RewardFault(Exception):
    """Raised when the infrastructure failed, not the response: worth another attempt. The message is one sentence."""

    kind: ErrorKind = "fault"


class WorkerDied(RewardFault):
    """Raised when a worker was lost; the message is one sentence."""


class WorkerBroken(RewardFault):
    """Raised when the worker failed for good and must be replaced; the message is one sentence."""

    kind = "broken"


@dataclass(frozen=True)
class ScoreItem:
    """One response to score; `sample` names it in messages."""

    sample: str
    prompt: str
    response: str
    answer: str
    row: Mapping[str, Any]
    """All fields of the row; a Code function's test cases as a list."""
    limits_s: Sequence[float] | None = None
    """Seconds of wall time of each test case, where the row has some."""
    reference: object = None
    """The answer as it is in the row."""
    messages: Sequence[Mapping[str, object]] = ()
    """Messages of the conversation that the prompt is, if it is one."""
    is_cut: bool = False
    """Whether the response ended at its largest length, and not by itself."""
    turns: Sequence[Mapping[str, object]] = ()
    """Conversation after the prompt, if the response is an episode; `response` is the last turn."""
    episode_reward: float | None = None
    """Reward that the environment gave for the episode that the response is, if it is one."""
    state: str | None = None
    """Final state that the environment told of the episode, as JSON."""


@dataclass(frozen=True)
class ScoreResult:
    """Reward of a response, and the time that scoring took; the bounds apply where the answer of a pod is read."""

    reward: Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)]
    seconds: Seconds
    timed_out: bool = False
    """Whether scoring was cut off: the reward is 0 for that, and counted apart."""
    broken: Sentence | None = None
    """Sentence about how the program broke what should have judged it: the reward is 0, and counted apart."""
    runs: Annotated[tuple[CaseRun, ...], Field(max_length=MAX_CASES, fail_fast=True)] = ()
    """Test cases that were run."""
    passed_all: bool = False
    """Whether every test case passed."""


ScoreOutcome = ScoreResult | RewardError | RewardFault
"""Outcome of one response among several."""


def with_sample(error: str, item: ScoreItem) -> str:
    """Return an error with the response and the row that it is about, both cut: an event has 1,024 bytes."""
    row = item.row or {"prompt": item.prompt, "answer": item.answer}
    fields = ", ".join(f"{one_line(str(name))}: {shown(value, _MAX_FIELD)}" for name, value in row.items())
    return f"{error}. Response: {shown(item.response, _MAX_RESPONSE)}. Row: {shortened(fields, _MAX_ROW)}"


def wants_row(function: RewardFunction) -> bool:
    """Return whether a Python function is called with more than prompt, response and answer."""
    return function.signature is not Signature.LONGSHORE


def reads_state(function: RewardFunction) -> bool:
    """Return whether a function may read the final state of an environment: others are not given it."""
    return function.kind in (RewardKind.PYTHON, RewardKind.HTTP)


class ResponseScorer(ABC):
    """One reward function, ready to score."""

    @property
    def report(self) -> LayerReport | None:
        """Layers of the scorer's sandbox, and the reasons why others are missing; None: it runs no code of models."""
        return None

    @abstractmethod
    def score(self, item: ScoreItem) -> ScoreResult:
        """Score one response; raises RewardError or RewardFault."""

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        """Score several responses, each with a separate outcome; raises RewardSetupError.

        In turn, unless several responses together cost about as much as one.
        """
        return [_outcome(self, item) for item in items]

    def give_up(self) -> None:  # noqa: B027 - most wait for nothing
        """End waits for something that is away, this one and all later ones, with an error; called from any thread."""

    @abstractmethod
    def close(self) -> None:
        """End what it started."""


def _outcome(scorer: ResponseScorer, item: ScoreItem) -> ScoreOutcome:
    try:
        return scorer.score(item)
    except (RewardError, RewardFault) as error:
        return error
