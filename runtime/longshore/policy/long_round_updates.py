"""Several optimizer updates in a long round: one for each round whose draws it takes up, and its own.

Strategies that put draws off train on prompts with long responses in every few rounds only. With one update each, these
prompts would move the weights in one update of so many, and the policy would learn less of them than in rounds of all
lengths.
"""

from collections.abc import Sequence

from longshore.api.algorithm import Algorithm, LongRoundUpdates
from longshore.api.rollout import Handover, Rollout
from longshore.api.round_status import RoundKind
from longshore.policy.old_log_probs import is_relative_to_trainer
from longshore.policy.strategies import usual_period


def update_sizes(algorithm: Algorithm, handover: Handover, num_updates: int) -> tuple[int, ...]:
    """Return U of each update of a round, the last of which holds for all further ones (see `HandoverQueue`).

    `num_updates`: of the round, if it is divided (`RoundPolicy.next_num_updates`).
    """
    if num_updates == 1 or not divides_long_rounds(algorithm, handover):
        return (algorithm.groups_per_update,)
    return divided(algorithm.prompts_per_step, num_updates)


def streams_gradients(handover: Handover, update_sizes: Sequence[int]) -> bool:
    """Return whether gradients of a round with these updates are computed while it runs, for its end.

    Only those of a single update can be: a later update needs the weights after the earlier ones, and the first has to
    take groups whatever their length, the longest of which are ready at the end.
    """
    return handover is Handover.STREAMED and len(update_sizes) == 1


def divided(num_groups: int, num_updates: int) -> tuple[int, ...]:
    """Return as many groups for each update as for the others, give or take one, and at least one."""
    count = min(num_updates, num_groups)
    return tuple(num_groups * (number + 1) // count - num_groups * number // count for number in range(count))


def expected_updates(algorithm: Algorithm, rollout: Rollout) -> int:
    """Return the optimizer updates of a job, without those that drain deferred draws.

    With long rounds at their usual places: the learning rate follows this number, before the rounds are known.
    """
    kinds = usual_period(rollout, algorithm.prompts_per_step)
    updates = algorithm.updates_per_step * algorithm.steps
    if RoundKind.LONG not in kinds or not divides_long_rounds(algorithm, rollout.effective_handover):
        return updates
    num_putting_off = sum(kind is not RoundKind.LONG for kind in kinds)
    num_more = len(divided(algorithm.prompts_per_step, num_putting_off + 1)) - 1
    return updates + algorithm.epochs_per_step * (algorithm.steps * num_more // len(kinds))


def divides_long_rounds(algorithm: Algorithm, handover: Handover) -> bool:
    """Return whether long rounds make several updates.

    Old log-probabilities of the trainer are computed before the first update, so updates wait for the whole round.
    """
    objective = algorithm.objective
    waits = not is_relative_to_trainer(objective, algorithm.rollout_correction) or handover is not Handover.PIPELINED
    return (
        algorithm.long_round_updates is LongRoundUpdates.PER_ROUND
        and algorithm.prompts_per_update is None
        and not objective.needs_whole_batch
        and waits
    )
