"""Make the reward functions of a job ready in a worker."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longshore.api import contract
from longshore.api.reward import RewardFunction
from longshore_runtime.rewards.kinds.kind import WorkerSide
from longshore_runtime.rewards.kinds.registry import kind_of
from longshore_runtime.rewards.scoring import ResponseScorer, RewardSetupError, ScoreItem
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

    def create_all(self, scorers: dict[str, ResponseScorer]) -> Surroundings:
        """Make all functions ready, one after the other; `scorers` has those that are, by name. Raises as `create`."""
        for function in self.functions:
            scorers[function.name] = self.create(function)
        reports = [scorer.report for scorer in scorers.values()]
        sandbox = next((report for report in reports if report is not None), None)
        return Surroundings(sandbox, os.environ.get(GPU_SHARING_VARIABLE) or None)


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
