"""The simulated job of a spec: `job_of`, and what a manifest says of rewards and engines besides."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from longshore.api.reward import RewardFunction, RewardKind
from longshore.api.spec import RLJobSpec
from longshore.policy.adaptive_timeout import TimeoutSettings
from longshore.sim.job import Rewards, SimJob, job_of, period
from longshore.sim.profile import Profile
from longshore.sim.rewards import CodeRewards, EndpointRewards, JudgeRewards, MathsRewards, MixedRewards, RewardTimes
from longshore_cli.simulate.errors import BadInput
from longshore_cli.simulate.inputs import Inputs

_NUM_STEPS: Final = 20
_LONGEST_PERIOD: Final = 60
"""Longer periods of tail batching are cut off."""
_TASK_REWARD_S: Final = 0.001
"""Comparing an answer of the built-in task."""
_COSTS: Final = (RewardKind.MATHS, RewardKind.JUDGE, RewardKind.CODE)
"""Cheapest first; those that are not named are cheaper."""


def sim_job(inputs: Inputs, spec: RLJobSpec) -> SimJob:
    """Return the job of a spec, with every trainer replica that its GPUs hold.

    Raises BadInput if it cannot be simulated.
    """
    profile, gpus_per_replica = inputs.profile, spec.trainer.ranks_per_replica if spec.training_pods.gpus_per_pod else 1
    try:
        job = job_of(_as_simulated(spec), inputs.model, inputs.gpu, inputs.lengths, profile)
        return replace(
            job,
            trainer=replace(job.trainer, gpus_per_replica=gpus_per_replica),
            rewards=_rewards(job.rewards, spec.reward.functions, profile),
            max_context_tokens=spec.model.max_context_tokens,
        )
    except ValueError as error:
        raise BadInput(str(error)) from error


def _as_simulated(spec: RLJobSpec) -> RLJobSpec:
    """Return the spec with trainers on all GPUs; a pod without GPUs has one engine, for which one GPU stands."""
    engine, trainer = spec.rollout.engine, spec.trainer.model_copy(update={"data_parallel_size": None})
    if not spec.workers.gpus_per_pod:
        engine = engine.model_copy(update={"tensor_parallel_size": 1})
    rollout = spec.rollout.model_copy(update={"engine": engine})
    return spec.model_copy(update={"trainer": trainer, "rollout": rollout})


def default_num_steps(spec: RLJobSpec) -> int:
    """Return whole periods of tail batching.

    A part of one has too few long rounds, and looks quicker than the job is.
    """
    rounds = period(spec)
    return rounds * math.ceil(_NUM_STEPS / rounds) if rounds <= _LONGEST_PERIOD else _LONGEST_PERIOD


def _rewards(rewards: Rewards, functions: Sequence[RewardFunction], profile: Profile) -> Rewards:
    """Return the times of rewards.

    Functions of single domains score prompts in turn, else the costliest stands for all.
    """
    times: RewardTimes
    if len(functions) > 1 and all(one.domains for one in functions):
        times = MixedRewards(tuple(_reward_times(one, profile) for one in functions))
    else:
        costliest = max(functions, key=lambda one: _COSTS.index(one.kind) if one.kind in _COSTS else -1)
        times = _reward_times(costliest, profile)
    return replace(rewards, times=times, adaptive_timeout=_adaptive_timeout(functions))


def _reward_times(function: RewardFunction, profile: Profile) -> RewardTimes:
    times = _verifier_times(function, profile)
    return EndpointRewards(times) if function.waits else times


def _verifier_times(function: RewardFunction, profile: Profile) -> RewardTimes:
    match function.kind:
        case RewardKind.TASK | RewardKind.ENVIRONMENT:  # A number that the environment has given already.
            return MathsRewards(_TASK_REWARD_S)
        case RewardKind.CODE:
            return CodeRewards(timeout_s=function.code.max_timeout_s)
        case RewardKind.JUDGE:
            measured = [point for point in profile.judge if point.function == function.name]
            return JudgeRewards.measured(measured) if measured else JudgeRewards()
        case _:
            return MathsRewards()


def _adaptive_timeout(functions: Sequence[RewardFunction]) -> TimeoutSettings | None:
    for one in functions:
        if one.tests is not None and one.tests.adaptive_timeout:
            return TimeoutSettings(one.tests.timeout_factor, one.tests.min_timeout_s, one.tests.max_timeout_s)
    return None
