"""From token losses to the loss of a step: each token's weight in an unreduced sum, and the sum's denominator.

The denominator is a function of all samples of the step and of nothing else, so that sums which were accumulated in any
order, in any parts and on any replicas give the same update.
"""

from collections.abc import Sequence
from enum import StrEnum


class Aggregation(StrEnum):
    """How token losses become the loss of an update."""

    TOKEN_MEAN = "TokenMean"
    """Sum over all tokens / number of tokens."""
    SEQUENCE_MEAN = "SequenceMean"
    """Mean over the tokens of a response, then over responses."""
    SEQUENCE_SUM = "SequenceSum"
    """Sum over the tokens of a response, mean over responses."""
    CONSTANT_LENGTH = "ConstantLength"
    """Sum over all tokens / (number of responses * maxResponseTokens)."""


def token_weight(aggregation: Aggregation, num_loss_tokens: int) -> float:
    """Return the weight of every loss-mask token of a response that has `num_loss_tokens` of them."""
    return 1.0 / num_loss_tokens if aggregation is Aggregation.SEQUENCE_MEAN else 1.0


def denominator(aggregation: Aggregation, num_loss_tokens: Sequence[int], max_response_tokens: int) -> float:
    """Return what a step's sum of weighted token losses is divided by.

    `num_loss_tokens` has one entry per sample of the whole step. A sample without loss-mask tokens is not in the loss
    and does not count; a step without any has the denominator 1, and its sum is zero.
    """
    num_samples = sum(number > 0 for number in num_loss_tokens)
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            number = sum(num_loss_tokens)
        case Aggregation.CONSTANT_LENGTH:
            number = num_samples * max_response_tokens
        case Aggregation.SEQUENCE_MEAN | Aggregation.SEQUENCE_SUM:
            number = num_samples
    return float(max(1, number))
