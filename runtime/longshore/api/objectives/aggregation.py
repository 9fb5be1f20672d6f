"""From token losses to the loss of a step: each token's weight in an unreduced sum, and the sum's denominator.

The denominator is a function of all samples of the step and of nothing else, so that sums which were accumulated in any
order, in any parts and on any replicas give the same update.
"""

import math
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


def token_weight(aggregation: Aggregation, num_loss_tokens: int, share: float = 1.0) -> float:
    """Return the weight of each of the `num_loss_tokens` tokens in the loss of a sample, a `share` of its response."""
    return share / num_loss_tokens if aggregation is Aggregation.SEQUENCE_MEAN else 1.0


def denominator(aggregation: Aggregation, in_loss: Sequence[tuple[int, float]], max_response_tokens: int) -> float:
    """Return what a step's sum of weighted token losses is divided by.

    `in_loss` has the number of loss-mask tokens of each sample of the step, and which share of its response it is. A
    sample without loss-mask tokens is not in the loss and does not count; a step without any has the denominator 1, and
    its sum is zero.
    """
    # Rounded once, so that the order of the samples does not count.
    num_responses = math.fsum(share for num_tokens, share in in_loss if num_tokens)
    match aggregation:
        case Aggregation.TOKEN_MEAN:
            number = float(sum(num_tokens for num_tokens, _ in in_loss))
        case Aggregation.CONSTANT_LENGTH:
            number = num_responses * max_response_tokens
        case Aggregation.SEQUENCE_MEAN | Aggregation.SEQUENCE_SUM:
            number = num_responses
    return number or 1.0
