"""Choose how the trainers get the groups of a step."""

import queue
from collections.abc import Sequence
from functools import partial

from longshore.api.objectives.with_critic import ObjectiveWithCritic
from longshore.api.rollout import Handover
from longshore.policy.handover import HandoverQueue
from longshore.policy.long_round_updates import streams_gradients, update_sizes
from longshore.policy.old_log_probs import computes_old_log_probs, is_relative_to_trainer
from longshore_runtime.clock import Clock
from longshore_runtime.data.prompt_record import PromptRecord
from longshore_runtime.rollout.events import Event
from longshore_runtime.step.parts import LoopOptions
from longshore_runtime.trainer.group import TrainerGroup
from longshore_runtime.trainer.streaming import StreamedUpdate
from longshore_runtime.trainer.updates import StepUpdates, StepWork, batch_samples, max_tokens_per_batch


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

    samples = partial(
        batch_samples,
        records=prompts,
        algorithm=algorithm,
        policy_version=policy_version,
        reward_weights=options.reward_weights,
    )
    sizes = update_sizes(algorithm, handover, num_updates)
    if streams_gradients(handover, sizes):
        awake = range(trainers.num_replicas) if options.trains_during_rollout else ()
        return StreamedUpdate(trainers, samples, events, clock, awake=awake, verify=verify, max_mismatch=limit)
    is_pipelined, objective = handover is Handover.PIPELINED, algorithm.objective
    budget = max_tokens_per_batch(objective, trainers.num_replicas, is_pipelined=is_pipelined)
    begins_during_rollout = is_pipelined and options.trains_during_rollout
    is_relative = is_relative_to_trainer(objective, algorithm.rollout_correction)
    computes = computes_old_log_probs(
        is_relative=is_relative,
        makes_one_update=algorithm.makes_one_update and len(sizes) == 1,
        begins_during_round=begins_during_rollout,
    )
    return StepUpdates(
        trainers,
        HandoverQueue(sizes, budget),
        samples,
        prompts,
        clock,
        begins_during_rollout=begins_during_rollout,
        num_epochs=algorithm.epochs_per_step,
        computes_old_log_probs=computes,
        compares_later_with_engine=is_relative and not computes,
        critic=objective if isinstance(objective, ObjectiveWithCritic) else None,
        verify=verify,
        max_mismatch=limit,
    )
