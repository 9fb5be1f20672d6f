"""An objective of the user's own: a function in Python that computes the losses of tokens."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from longshore.api.base import Freeform, ImportPath
from longshore.api.objectives.advantages import Advantages, Rewards, centred, leave_one_out, normalised
from longshore.api.objectives.aggregation import Aggregation
from longshore.api.objectives.objective import ADVANTAGE_EPSILON, LossTokens, Objective, TokenLosses


class Estimator(StrEnum):
    """What a reward is compared with."""

    NORMALISED = "Normalised"
    CENTRED = "Centred"
    LEAVE_ONE_OUT = "LeaveOneOut"


_ESTIMATORS: Final[Mapping[Estimator, Callable[[Rewards], Advantages]]] = {
    Estimator.NORMALISED: lambda rewards: normalised(rewards, ADVANTAGE_EPSILON),
    Estimator.CENTRED: centred,
    Estimator.LEAVE_ONE_OUT: leave_one_out,
}


class Custom(Objective):
    """A function of the user's own, at `importPath`.

    It is called as `function(tokens, **settings)` and returns the loss of each token, a tensor with the shape of
    `tokens.log_probs` and with a gradient; or that and a bool tensor that says which tokens were clipped. `tokens` is a
    `longshore.api.objectives.objective.LossTokens`. It runs in the trainers, and is tried before engines start.
    """

    name: Literal["Custom"] = "Custom"
    import_path: ImportPath
    """Python function as `package.module:function`."""
    settings: Freeform = Field(default_factory=dict)
    """Further arguments of the function, by name."""
    advantage: Estimator = Estimator.NORMALISED
    """How rewards become advantages. Normalised: as GRPO. Centred: as DrGRPO. LeaveOneOut: as RLOO."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """How token losses become the loss of an update. TokenMean: sum / number of tokens. SequenceMean: mean over each
    response, then over responses. SequenceSum: sum over each response, mean over responses. ConstantLength: sum /
    (number of responses * maxResponseTokens)."""

    @property
    def loss_aggregation(self) -> Aggregation:
        """Return the one that the job chose."""
        return self.aggregation

    def advantages(self, groups: Sequence[Rewards]) -> list[Advantages]:
        """Compute the advantages of each group with the estimator that the job chose."""
        return [_ESTIMATORS[self.advantage](rewards) for rewards in groups]

    def token_losses(self, tokens: LossTokens) -> TokenLosses:
        """Call the function."""
        result = self.function()(tokens, **self.settings)
        loss, is_clipped = result if isinstance(result, tuple) else (result, None)
        return TokenLosses(loss, loss.new_zeros(loss.shape).bool() if is_clipped is None else is_clipped)

    def function(self) -> Callable[..., Any]:
        """Import the function; raises what importing its module does, or AttributeError."""
        module, name = self.import_path.split(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found
