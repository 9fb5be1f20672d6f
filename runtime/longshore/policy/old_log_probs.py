"""What the clipped ratio is relative to: the trainer's log-probabilities at the start of the step, or the engine's.

A ratio per token is relative to the engine's, and so corrects for what engine and trainer differ by: its clips are far
wider than rounding. The ratio of a response (GSPO, equations 5 to 7) has clips of a few ten-thousandths (section 5.1),
which is what rounding alone moves it by, mostly down: the mean of log π(trainer) - log π(engine) estimates -KL. So it
is relative to the trainer's own, as in the paper, verl and TRL; and so is every ratio with rollout correction.
"""

from longshore.api.correction import RolloutCorrection
from longshore.api.objectives.objective import Objective


def is_relative_to_trainer(objective: Objective, correction: RolloutCorrection | None) -> bool:
    """Return whether the ratio is relative to the trainer's log-probabilities at the start of the step."""
    return correction is not None or objective.compares_with_trainer


def computes_old_log_probs(*, is_relative: bool, makes_one_update: bool, begins_during_round: bool) -> bool:
    """Return whether a step begins with a forward pass over its batch, which computes them.

    In the only update of a step they are those that are being trained. Updates that begin while the round runs change
    the weights before the batch is complete: then the first one needs no pass, and later ones compare with the engine.

    Args:
        is_relative: the ratio is (`is_relative_to_trainer`).
        makes_one_update: of the step, whose round may be a long one.
        begins_during_round: the first update does.
    """
    return is_relative and not makes_one_update and not begins_during_round
