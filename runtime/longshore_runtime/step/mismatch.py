"""What follows if trainers disagree with the engines, or with themselves.

The tokens of a refused round cannot be checked again: other weights may have sampled them, so no step of a strictly
on-policy job may use them, whatever a reloaded engine says of them. The same draws are sampled again with the same
seeds instead, and the trainers check what comes out.
"""

from collections.abc import Callable
from typing import TypeVar

import structlog

from longshore.api.reasons import AlarmReason
from longshore_runtime.errors import LogProbMismatch, UserError
from longshore_runtime.trainer.updates import StepTraining

log = structlog.get_logger()

T = TypeVar("T")


def require_equal_gradients(trained: StepTraining, step: int, tolerance: float) -> None:
    """Raise UserError where a verified step had other gradients than one pass over its whole batch."""
    difference = trained.gradient_difference
    if difference is not None and difference > tolerance:
        raise UserError(
            f"trainer.verifyEvery: in step {step} the accumulated gradients differ by {difference:.2e} from those of "
            f"one pass over the whole batch, and rounding explains at most {tolerance:g}: samples were lost or counted "
            "twice, or a replica computes something else; report it"
        )


class MismatchGuard:
    """Repeats a round that was refused once, before the job fails."""

    def __init__(self, limit: float | None, notify: Callable[[str, str], None]) -> None:
        """Keep the `limit` of the mean mismatch for messages; `notify` is called with reason and message."""
        self._limit = limit
        self._notify = notify

    def checked(self, step: int, attempt: Callable[[], T], prepare_retry: Callable[[], None]) -> T:
        """Return the result of `attempt`, which samples and trains, or raises LogProbMismatch before any training.

        `prepare_retry`: gives the engines the weights again, and makes everything ready for the same draws.

        Raises:
            LogProbMismatch: see above.
            UserError: the second attempt is refused as well.
        """
        try:
            return attempt()
        except LogProbMismatch as refusal:
            first = refusal.mean
        self._notify(
            AlarmReason.LOG_PROB_MISMATCH,
            f"in step {step} {self._difference(first)}; it was not trained on: the engines get the weights again, and "
            "its round is sampled again",
        )
        prepare_retry()
        try:
            result = attempt()
        except LogProbMismatch as refusal:
            raise UserError(
                f"rollout.maxLogProbMismatch: in step {step} {self._difference(refusal.mean)}, and by {first:.3g} "
                "before the engines got the weights again; engines sample with other weights, or from another "
                "distribution, than is trained: check rollout.engine (dtype, extraArgs) and the versions in the image, "
                "and raise the limit only if engines are meant to differ, as quantised ones do"
            ) from refusal
        log.info("engines and trainers agree again", step=step)
        return result

    def _difference(self, mean: float) -> str:
        return (
            f"the log-probabilities of engines and trainers differ by {mean:.3g} per token (mean), and the limit is "
            f"{self._limit:g}"
        )
