"""Decide whether the gradients of an update may reach the weights, by the sums of all that it consists of."""

import math
from collections.abc import Iterable

from longshore.policy.log_prob_mismatch import exceeds
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.errors import LogProbMismatch, diverged


def require_trainable(
    sums: Iterable[GradientSums], max_mismatch: float | None, field: str = "algorithm.learningRate"
) -> None:
    """Raise LogProbMismatch past the limit (None: there is none), and UserError for a loss that is no finite number.

    `sums` of all replicas: every rank decides alike, so that none waits for another in the update.
    """
    total = sum(sums, GradientSums())
    mean = total.mean_mismatch
    if max_mismatch is not None and mean is not None and exceeds(mean, max_mismatch):
        raise LogProbMismatch(mean)
    if not math.isfinite(total.loss):
        raise diverged(field, f"the loss is {total.loss}")
