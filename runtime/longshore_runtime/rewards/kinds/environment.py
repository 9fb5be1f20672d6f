"""The reward that the environment of a row gives for the whole episode."""

from typing import TYPE_CHECKING

from longshore_runtime.rewards.kinds.kind import Kind, WorkerSide
from longshore_runtime.rewards.scoring import ResponseScorer, RewardError, ScoreItem, ScoreResult

if TYPE_CHECKING:
    from longshore.api.reward import RewardFunction


class EnvironmentRewardKind(Kind):
    """Hands on what an environment has said already."""

    is_proven = True

    def scorer(self, function: "RewardFunction", side: WorkerSide) -> "EnvironmentScorer":
        """Return the scorer, which needs nothing."""
        return EnvironmentScorer(function.name)


class EnvironmentScorer(ResponseScorer):
    """Returns the reward that came with an episode."""

    def __init__(self, name: str) -> None:
        """Keep the name of the function for messages."""
        self._name = name

    def score(self, item: ScoreItem) -> ScoreResult:
        """Return the reward of the episode; raises RewardError if its environment gives none."""
        if item.episode_reward is None:
            raise RewardError(
                f"reward {self._name}: {item.sample}: its environment gives no reward; write its get_reward(), or "
                "score with another kind of function"
            )
        return ScoreResult(item.episode_reward, 0.0)

    def close(self) -> None:
        """Do nothing: nothing was started."""
