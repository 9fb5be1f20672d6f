"""Errors that cross modules: what ends a run, by whose it is, and what costs an engine or its weights."""

from typing import Final

ASKED_TO_STOP: Final = "the pod was asked to stop"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class UserError(Exception):
    """Raised for a mistake in the job that no retry mends; the message is one sentence with the field and the fix."""


def diverged(field: str, what: str) -> UserError:
    """Return the error of an update whose loss or gradients are no finite numbers; `field`: that of its rate."""
    return UserError(
        f"{field}: {what}, and no optimizer step was made with it; lower the learning rate in a new job, which goes on "
        "from the newest checkpoint or has another storage.output"
    )


class CannotContinue(UserError):
    """Raised for what keeps a job from going on that has trained before: an edit, or a server, may be mended."""


class Interrupted(Exception):
    """Raised when the pod was asked to stop."""


class SizeChanged(Exception):
    """Raised when the job goes on from its newest checkpoint with another number of worker pods."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.num_workers = num_workers


class JobUnknown(Exception):
    """Raised when the API server says nothing about the job; the message is one sentence."""


class TrainerLost(Exception):
    """Raised when a trainer replica is lost; all trainers restart from the newest checkpoint."""


class LogProbMismatch(Exception):
    """Raised when an update is refused because engines and trainers disagree about log-probabilities of its tokens.

    Its gradients and those of every later update of the step wait to be discarded; the weights are as before.
    """

    def __init__(self, mean: float) -> None:
        """Take the `mean` of |log-probability of trainer - engine| per token."""
        super().__init__(mean)
        self.mean = mean


class EngineDied(Exception):
    """Raised when the engine has failed and takes no more work; the message is one sentence."""


class WeightsUnavailable(Exception):
    """Raised when published weights cannot be fetched, mostly because their trainer is gone.

    The engine then waits for others.
    """
