"""What a profile says to the parallelism planner: the simulator plays the job's rounds at every measured size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from longshore.api.quantity import parse_bytes
from longshore.api.rollout import Rollout
from longshore.api.round_status import RoundKind
from longshore.api.spec import RLJobSpec
from longshore.policy.parallelism_planner import RolloutProfile
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import gpu_described
from longshore.sim.job import GpuPool, Rewards, SimJob, default_lengths, period
from longshore.sim.profile import Profile
from longshore.sim.result import StepRecord
from longshore.sim.rewards import MathsRewards
from longshore.sim.simulate import simulate

_BOUNDLESS_TOKENS: Final = 1 << 50
"""A KV cache in which nothing is preempted."""
_LEAST_ROUNDS: Final = 10
"""In whole periods of tail batching."""
_MOST_ROUNDS: Final = 30
"""Longer periods of tail batching are cut off."""


def rollout_profile(profile: Profile, spec: RLJobSpec) -> RolloutProfile | None:
    """Return round times, and what regrouping and preemptions cost, by the profile of a job.

    None where the profile lacks a subject or the job's own tensor-parallel size. Lengths are the simulator's default:
    the job has not sampled any.
    """
    own_size = spec.rollout.engine.tensor_parallel_size
    if profile.subject is None or own_size not in profile.tp_sizes:
        return None
    workers = spec.workers
    gpus_per_pod = max(1, workers.gpus_per_pod)
    job = SimJob(
        rollout=spec.rollout,
        shape=BatchShape(spec.algorithm.prompts_per_step, spec.algorithm.responses_per_prompt),
        model=profile.subject.model_shape,
        gpus=GpuPool(gpu_described(profile.subject.gpu), workers.replicas * gpus_per_pod, gpus_per_pod),
        lengths=default_lengths(spec),
        rewards=Rewards(MathsRewards(per_sample_s=0.0)),
        profile=profile,
        seed=spec.algorithm.seed,
    )
    of_period = period(spec)
    num_rounds = min(_MOST_ROUNDS, of_period * math.ceil(_LEAST_ROUNDS / of_period))
    unbounded = {size: _rounds(_boundless(_of_size(job, size), size), num_rounds) for size in profile.tp_sizes}
    bounded = {size: _bounded(_of_size(job, size), num_rounds) for size in profile.tp_sizes}
    kinds = sorted(set.intersection(*({record.kind for record in records} for records in unbounded.values())))
    return RolloutProfile(
        switch_s=job.engine_costs.regroup_s(own_size),
        preemption_s=_preemption_s(_of_size(job, own_size), unbounded[own_size], bounded[own_size]),
        round_s={kind: {size: _mean_s(unbounded[size], kind) for size in unbounded} for kind in kinds},
        num_preemptions={kind: _mean_preemptions(bounded, kind) for kind in kinds},
    )


def _of_size(job: SimJob, tp_size: int) -> SimJob:
    """Return the job with engines of this size; each GPU holds as much KV cache as before."""
    engine, changes = job.rollout.engine, dict[str, Any](tensor_parallel_size=tp_size)
    if engine.kv_cache is not None:
        changes["kv_cache"] = parse_bytes(engine.kv_cache) * tp_size // engine.tensor_parallel_size
    rollout: Rollout = job.rollout.model_copy(update={"engine": engine.model_copy(update=changes)})
    return job.with_rollout(rollout)


def _boundless(job: SimJob, tp_size: int) -> SimJob:
    capacity: Mapping[int, int] = {tp_size: _BOUNDLESS_TOKENS}
    return replace(job, profile=job.profile.model_copy(update={"kv_capacity_tokens": capacity}))


def _rounds(job: SimJob, num_rounds: int) -> Sequence[StepRecord]:
    return simulate(job, num_rounds, keeps_spans=False).steps


def _mean_s(records: Sequence[StepRecord], kind: RoundKind) -> float:
    return fmean(record.rollout_s for record in records if record.kind is kind)


def _bounded(job: SimJob, num_rounds: int) -> Sequence[StepRecord]:
    """Simulate rounds with the measured KV cache; none if the longest response does not fit: the job says so itself."""
    try:
        return _rounds(job, num_rounds)
    except ValueError:
        return ()


def _mean_preemptions(bounded: Mapping[int, Sequence[StepRecord]], kind: RoundKind) -> Mapping[int, float]:
    counts = {size: [one.num_preemptions for one in records if one.kind is kind] for size, records in bounded.items()}
    return {size: fmean(found) for size, found in counts.items() if found}


def _preemption_s(job: SimJob, unbounded: Sequence[StepRecord], bounded: Sequence[StepRecord]) -> float:
    """Return the seconds a bounded KV cache adds per preemption or, without any, those of recomputing a response.

    While an engine recomputes, its other requests wait; other engines do not.
    """
    tp_size, costs = job.rollout.engine.tensor_parallel_size, job.engine_costs
    num_preemptions = sum(record.num_preemptions for record in bounded)
    if num_preemptions:
        added_s = sum(record.rollout_s for record in bounded) - sum(record.rollout_s for record in unbounded)
        return max(0.0, added_s / num_preemptions)
    sampled = sum(record.num_trained_tokens for record in unbounded)
    mean_tokens = sampled / sum(record.num_trained_samples for record in unbounded)
    num_engines = job.gpus.num_gpus // tp_size
    return costs.prefill_s(round(mean_tokens / 2), tp_size) / num_engines
