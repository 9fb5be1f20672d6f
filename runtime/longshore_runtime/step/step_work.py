"""The updates of a step: how the trainers get its groups, and what follows if they disagree with the engines.

The tokens of a refused round cannot be checked again: other weights may have sampled them, so no step of a strictly
on-policy job may use them, whatever a reloaded engine says of them. The same draws are sampled again with the same
seeds instead, and the trainers check what comes out.
"""

import queue
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from longshore.api.reasons import AlarmReason
from longshore.api.rollout import Handover
from longshore.policy.handover import HandoverQueue
from longshore.policy.long_round_updates import update_sizes
from longshore.policy.old_log_probs import compares_with_trainer, computes_old_log_probs
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.clock import Clock
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.errors import LogProbMismatch, UserError
from longshore_runtime.rollout.batch import ScoredGroup
from longshore_runtime.rollout.events import Event
from longshore_runtime.step.parts import LoopOptions
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer.updates import StepTraining, StepUpdates, StepWork, batch_samples, max_tokens_per_batch


def step_work(
    options: LoopOptions,
    trainers: TrainerGroup,
    prompts: Sequence[PromptRecord],
    events: "queue.SimpleQueue[Event]",
    clock: Clock,
    *,
    step: int,
    policy_version: int,
    handover: Handover,
    num_updates: int,
) -> StepWork:
    """Return the work of a step whose round weights of this version sample; `prompts` by index of the draw.

    `num_updates`: of the round, if it is divided (`policy.long_round_updates`).
    """
    algorithm, limit = options.algorithm, options.max_mismatch
    verify = options.verify_every is not None and step % options.verify_every == 0

    def samples_of(groups: Sequence[ScoredGroup]) -> list[Sample]:
        return batch_samples(groups, prompts, algorithm, policy_version)

    if handover is Handover.STREAMED:
        awake = range(trainers.num_replicas) if options.trains_during_rollout else ()
        return StreamedUpdate(trainers, samples_of, events, clock, awake=awake, verify=verify, max_mismatch=limit)
    is_pipelined, objective = handover is Handover.PIPELINED, algorithm.objective
    budget = max_tokens_per_batch(objective, trainers.num_replicas, is_pipelined=is_pipelined)
    sizes = update_sizes(algorithm, handover, num_updates)
    begins_during_rollout = is_pipelined and options.trains_during_rollout
    is_relative = compares_with_trainer(objective, algorithm.rollout_correction)
    computes = computes_old_log_probs(
        is_relative=is_relative,
        makes_one_update=algorithm.makes_one_update and len(sizes) == 1,
        begins_during_round=begins_during_rollout,
    )
    return StepUpdates(
        trainers,
        HandoverQueue(sizes, budget),
        samples_of,
        prompts,
        clock,
        begins_during_rollout=begins_during_rollout,
        num_epochs=algorithm.epochs_per_step,
        computes_old_log_probs=computes,
        compares_later_with_engine=is_relative and not computes,
        verify=verify,
        max_mismatch=limit,
    )


def require_equal_gradients(trained: StepTraining, step: int, tolerance: float) -> None:
    """Raise UserError where a verified step had other gradients than one pass over its whole batch."""
    difference = trained.gradient_difference
    if difference is not None and difference > tolerance:
        raise UserError(
            f"trainer.verifyEvery: in step {step} the accumulated gradients differ by {difference:.2e} from those of "
            f"one pass over the whole batch, and rounding explains at most {tolerance:g}: samples were lost or counted "
            "twice, or a replica computes something else; report it"
        )


log = structlog.get_logger()

T = TypeVar("T")


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
