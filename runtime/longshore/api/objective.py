"""The objectives as a table: each is an advantage estimator, the level of its ratio and the way it adds tokens up."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from longshore.api.algorithm import AlgorithmName


class AdvantageEstimator(StrEnum):
    """What a reward is compared with (formulas in `policy/advantages.py`)."""

    GROUP_NORMALISED = "GroupNormalised"
    GROUP_CENTRED = "GroupCentred"
    LEAVE_ONE_OUT = "LeaveOneOut"
    BATCH_WHITENED = "BatchWhitened"


class RatioLevel(StrEnum):
    """What has one importance ratio: a token, or a whole response (the geometric mean of its tokens' ratios)."""

    TOKEN = "Token"
    SEQUENCE = "Sequence"


class Aggregation(StrEnum):
    """How token losses become the loss of a step (weights and denominators in `policy/aggregation.py`)."""

    TOKEN_MEAN = "TokenMean"
    """Sum over all tokens / number of tokens."""
    SEQUENCE_MEAN = "SequenceMean"
    """Mean over the tokens of a response, then over responses."""
    SEQUENCE_SUM = "SequenceSum"
    """Sum over the tokens of a response, mean over responses."""
    CONSTANT_LENGTH = "ConstantLength"
    """Sum over all tokens / (number of responses * maxResponseTokens)."""


@dataclass(frozen=True)
class Objective:
    """What tells one algorithm from another; everything else is a field of the spec that works with all of them."""

    advantage: AdvantageEstimator
    ratio: RatioLevel
    aggregation: Aggregation

    @property
    def needs_whole_batch(self) -> bool:
        """Whether no advantage is known before the last group of the step.

        Such a batch can be neither streamed nor divided over several updates.
        """
        return self.advantage is AdvantageEstimator.BATCH_WHITENED


_TOKEN_LEVEL: Final = Objective(AdvantageEstimator.GROUP_NORMALISED, RatioLevel.TOKEN, Aggregation.TOKEN_MEAN)

OBJECTIVES: Final[Mapping[AlgorithmName, Objective]] = MappingProxyType(
    {
        AlgorithmName.GRPO: _TOKEN_LEVEL,
        AlgorithmName.DAPO: _TOKEN_LEVEL,
        AlgorithmName.GSPO: Objective(
            AdvantageEstimator.GROUP_NORMALISED, RatioLevel.SEQUENCE, Aggregation.SEQUENCE_MEAN
        ),
        AlgorithmName.DR_GRPO: Objective(
            AdvantageEstimator.GROUP_CENTRED, RatioLevel.TOKEN, Aggregation.CONSTANT_LENGTH
        ),
        AlgorithmName.RLOO: Objective(AdvantageEstimator.LEAVE_ONE_OUT, RatioLevel.TOKEN, Aggregation.SEQUENCE_SUM),
        AlgorithmName.REINFORCE_PLUS_PLUS: Objective(
            AdvantageEstimator.BATCH_WHITENED, RatioLevel.TOKEN, Aggregation.TOKEN_MEAN
        ),
    }
)
