"""Errors that cross modules: what ends a run, by whose it is, and what costs an engine or its weights."""


class UserError(Exception):
    """A mistake in the job that no retry mends: one sentence that names the field and the fix."""


class Interrupted(Exception):
    """The pod was asked to stop."""


class TrainerLost(Exception):
    """A trainer replica is gone; its world starts again from the newest checkpoint."""


class EngineDied(Exception):
    """The engine raised an error and takes no more work: one sentence."""


class WeightsGone(Exception):
    """Published weights cannot be fetched, mostly because their trainer is gone: the engine waits for others."""
