"""Errors that cross modules: what ends a run, by whose it is, and what costs an engine or its weights."""

from typing import Final

ASKED_TO_STOP: Final = "the pod was asked to stop"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or what it is called if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class UserError(Exception):
    """A mistake in the job that no retry mends: one sentence that names the field and the fix."""


class CannotContinue(UserError):
    """A mistake that keeps a job which has trained before from going on: another edit may mend it."""


class Interrupted(Exception):
    """The pod was asked to stop."""


class SizeChanged(Exception):
    """The job goes on from its newest checkpoint with another number of worker pods."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self.num_workers = num_workers


class JobUnknown(Exception):
    """The API server says nothing about the job: one sentence."""


class TrainerLost(Exception):
    """A trainer replica is lost; all trainers restart from the newest checkpoint."""


class LogProbMismatch(Exception):
    """An update was refused, since engines and trainers disagree about the log-probabilities of its tokens.

    Its gradients and those of every later update of the step wait to be discarded; the weights are as before.
    """

    def __init__(self, mean: float) -> None:
        """`mean` of |log-probability of trainer - engine| per token."""
        super().__init__(mean)
        self.mean = mean


class EngineDied(Exception):
    """The engine raised an error and takes no more work: one sentence."""


class WeightsUnavailable(Exception):
    """Published weights cannot be fetched, mostly because their trainer is gone: the engine waits for others."""
