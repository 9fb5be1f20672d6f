"""The reward functions of a job, made ready in a worker."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longshore.api import contract
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.kinds.kind import WorkerSide
from longshore_runtime.rewards.kinds.registry import kind_of
from longshore_runtime.rewards.scoring import (
    ResponseScorer,
    RewardSetupError,
    ScoreItem,
    ScoreOutcome,
)
from longshore_runtime.rewards.surroundings import GPU_SHARING_VARIABLE, Surroundings


@dataclass(frozen=True)
class ScorerFactory:
    """Settings from which a worker makes its scorers."""

    functions: Sequence[RewardFunction]
    output: str
    """Output directory of the job, from which its storage follows."""
    rehearsals: Mapping[str, Sequence[ScoreItem]] = field(default_factory=dict)
    """Rows with their reference answers as responses, which a function must be able to score, by function."""

    def create(self, function: RewardFunction) -> ResponseScorer:
        """Make a function ready to score, which starts a process for most kinds.

        Raises:
            RewardSetupError: it can score nothing.
            RewardFault: something else failed.
        """
        side = WorkerSide(_token(function), self.output, self.rehearsals.get(function.name, ()))
        return kind_of(function.kind).scorer(function, side)


class Scorers:
    """Every reward function that one worker scores."""

    def __init__(self, factory: ScorerFactory) -> None:
        self._factory = factory
        self._scorers: dict[str, ResponseScorer] = {}

    def prepare(self) -> Surroundings:
        """Make all of them ready to score; raises RewardSetupError or RewardFault."""
        for function in self._factory.functions:
            self._scorers[function.name] = self._factory.create(function)
        reports = [scorer.report for scorer in self._scorers.values()]
        sandbox = next((report for report in reports if report is not None), None)
        return Surroundings(sandbox, os.environ.get(GPU_SHARING_VARIABLE) or None)

    def score(self, function: str, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        """Return the outcomes of these responses, in order; raises RewardSetupError."""
        return self._scorers[function].score_many(items)

    def give_up(self) -> None:
        """End all waits for something that is away; called from any thread."""
        for scorer in list(self._scorers.values()):
            scorer.give_up()

    def close(self) -> None:
        """End what they started."""
        for scorer in self._scorers.values():
            scorer.close()


def _token(function: RewardFunction) -> Path | None:
    """Return the file with its bearer token."""
    secret = function.token_secret
    if secret is None and function.pool is None:
        return None
    tokens = os.environ.get(contract.ENV_REWARD_TOKENS, "")
    path = Path(tokens) / function.name
    if not tokens or not path.is_file():
        assert secret is not None, "the token of a pool is the job's own, and mounted"
        raise RewardSetupError(
            f"reward.functions[{function.name}].tokenSecret: {secret.name!r} has no key {secret.key!r}"
        )
    return path
