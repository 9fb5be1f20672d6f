"""The reward functions of a job, made ready in a worker."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longshore.api import contract
from longshore.api.reward import RewardFunction, RewardKind
from longshore_runtime.rewards.scoring import (
    ManyScorer,
    ResponseScorer,
    RewardError,
    RewardFault,
    RewardSetupError,
    SandboxedScorer,
    ScoreItem,
    ScoreOutcome,
    ScoreResult,
    Waiting,
)
from longshore_runtime.sandbox.layers import LayerReport


class LazyScorer:
    """Implements `ResponseScorer`: makes a scorer when it is first needed, since most start processes."""

    def __init__(self, function: RewardFunction, output: str, rehearsal: Sequence[ScoreItem] = ()) -> None:
        """Keep the settings; `rehearsal`: rows that a function of the user has to be able to score."""
        self._function = function
        self._output = output
        self._rehearsal = rehearsal
        self._scorer: ResponseScorer | None = None

    def prepare(self) -> None:
        """Make the scorer; raises RewardSetupError."""
        if self._scorer is None:
            self._scorer = _create(self._function, _token(self._function), self._output, self._rehearsal)

    def score(self, item: ScoreItem) -> ScoreResult:
        """Score one response."""
        self.prepare()
        assert self._scorer is not None
        return self._scorer.score(item)

    def score_many(self, items: Sequence[ScoreItem]) -> list[ScoreOutcome]:
        """Score several responses, each with a separate outcome: together if the function can, otherwise in turn."""
        self.prepare()
        if isinstance(self._scorer, ManyScorer):
            return self._scorer.score_many(items)
        return [self._outcome(item) for item in items]

    @property
    def report(self) -> LayerReport | None:
        """Layers of the function's sandbox, if it has one; `prepare` comes first."""
        return self._scorer.report if isinstance(self._scorer, SandboxedScorer) else None

    def give_up(self) -> None:
        """See `Waiting`."""
        if isinstance(self._scorer, Waiting):
            self._scorer.give_up()

    def close(self) -> None:
        """End what it started; the next response starts it again."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    def _outcome(self, item: ScoreItem) -> ScoreOutcome:
        try:
            return self.score(item)
        except (RewardError, RewardFault) as error:
            return error


@dataclass(frozen=True)
class ScorerFactory:
    """Settings from which a worker makes its scorers."""

    functions: Sequence[RewardFunction]
    output: str
    """Output directory of the job, from which its storage follows."""
    rehearsals: Mapping[str, Sequence[ScoreItem]] = field(default_factory=dict)
    """Rows with their reference answers as responses, which a function must be able to score, by function."""

    def create(self) -> Mapping[str, LazyScorer]:
        """Return every function by name."""
        return {
            function.name: LazyScorer(function, self.output, self.rehearsals.get(function.name, ()))
            for function in self.functions
        }


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


def _create(
    function: RewardFunction, token: Path | None, output: str, rehearsal: Sequence[ScoreItem]
) -> ResponseScorer:
    match function.kind:
        case RewardKind.TASK | RewardKind.MATHS | RewardKind.PYTHON:
            from longshore_runtime.rewards.scorer import ChildScorer

            return ChildScorer(function, rehearsal)
        case RewardKind.CODE:
            from longshore_runtime.rewards.code import CodeScorer

            return CodeScorer(function)
        case RewardKind.HTTP:
            from longshore_runtime.rewards.http import HttpScorer

            return HttpScorer(function, token)
        case RewardKind.JUDGE:
            from longshore_runtime.rewards.judge import judge_scorer

            return judge_scorer(function, token, output)
