"""Errors that end a run, by whose they are."""


class UserError(Exception):
    """A mistake in the job that no retry mends: one sentence that names the field and the fix."""


class Interrupted(Exception):
    """The pod was asked to stop."""


class TrainerLost(Exception):
    """A trainer replica is gone; its world starts again from the newest checkpoint."""
