"""The metrics of one step, under the names that verl users search for. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np

from longshore.api.round_status import RoundKind
from longshore.policy.round import ResponseId
from longshore.policy.selection_bias import UNIT_RANGE, RewardRange, SelectionBias, selection_bias
from longshore.record.facts import StepMarks
from longshore_runtime.backends.engine_protocol import FinishReason
from longshore_runtime.backends.sums import CorrectionSums
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.checkpoints.run_state import has_zero_variance
from longshore_runtime.elastic.repurposing import RepurposingTimes
from longshore_runtime.environments.pod_protocol import FailureCause
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.trainer.updates import StepTraining, off_policy_token_share
from longshore_runtime.trajectories.episode import Episode

_LEAST_VARIANCE: Final = 1e-5
"""Number added to the variance of returns, as in verl, so that the explained share is finite."""


@dataclass(frozen=True)
class StepTimes:
    """Durations of the parts of a step."""

    step_s: float
    regroup_s: float
    """Seconds until the engines had the size that the round asks for."""
    gen_s: float
    reward_s: float
    """Seconds of waiting for rewards after the rollout; scoring during the rollout costs nothing."""
    train_s: float
    publish_s: float

    @classmethod
    def of(cls, marks: StepMarks, rollout_s: float) -> "StepTimes":
        """Return the durations between the marks of a step."""
        return cls(
            step_s=marks.published_s - marks.begun_s,
            regroup_s=marks.regrouped_s - marks.begun_s,
            gen_s=rollout_s,
            reward_s=marks.scored_s - marks.started_s - rollout_s,
            train_s=marks.trained_s - marks.scored_s,
            publish_s=marks.published_s - marks.trained_s,
        )


@dataclass(frozen=True)
class LengthSummary:
    """Mean, quartile and maximum of response lengths, in tokens."""

    mean: float
    p75: float
    max: int
    min: int


def lengths(samples: Sequence[Sample]) -> LengthSummary:
    """Summarize the response lengths of a step.

    An episode is one response with the tokens of all its branches, of which what its environment said is a part.
    """
    of_response: Counter[ResponseId] = Counter()
    for sample in samples:
        of_response[sample.response] += sample.num_response_tokens
    values = sorted(of_response.values())
    return LengthSummary(_mean(values), float(values[(3 * (len(values) - 1)) // 4]), values[-1], values[0])


def step_metrics(
    result: RoundResult,
    trained: StepTraining,
    times: StepTimes,
    queue_length: int,
    num_gpus: int,
    reward_range: RewardRange = UNIT_RANGE,
    shorter_again: float | None = None,
) -> dict[str, float]:
    """Return all metrics of a step, by name; `num_gpus` divides the throughput."""
    samples = trained.samples
    responses = [one for group in result.groups for one in group.responses]
    by_response = {sample.response: sample for sample in samples}.values()  # An episode counts once.
    scores = [sample.reward for sample in by_response]
    rewards = [sample.reward + sample.penalty for sample in by_response]
    advantages = [sample.mean_advantage for sample in by_response]
    response = lengths(samples)
    prompts = [len(sample.prompt_tokens) for sample in samples]
    sums = trained.sums
    num_loss_tokens = max(1, sums.num_loss_tokens)
    total_tokens = trained.num_tokens + sum(prompts)
    clipped = sum(one.completion.finish_reason is FinishReason.LENGTH for one in responses)
    return {
        "timing_s/regroup": times.regroup_s,
        "timing_s/gen": times.gen_s,
        "timing_s/reward": times.reward_s,
        "timing_s/update_actor": times.train_s,
        **_optional("timing_s/old_log_prob", trained.old_log_probs_s),
        **_optional("timing_s/values", trained.values_s),
        "timing_s/update_weights": times.publish_s,
        "timing_s/step": times.step_s,
        "perf/time_per_step": times.step_s,
        "perf/total_num_tokens": total_tokens,
        "perf/throughput": total_tokens / (times.step_s * num_gpus),
        "perf/bubble_share": 1.0 - result.busy_share,
        "response_length/mean": response.mean,
        "response_length/p75": response.p75,
        "response_length/max": response.max,
        "response_length/min": response.min,
        "response_length/clip_ratio": clipped / len(responses),
        "response/aborted_ratio": result.num_aborted / result.num_launched if result.num_launched else 0.0,
        "response/dropped_token_ratio": result.dropped_token_share,
        "response/sampled_tokens": result.num_sampled_tokens,
        "prompt_length/mean": _mean(prompts),
        "prompt_length/max": max(prompts),
        "critic/score/mean": _mean(scores),
        "critic/rewards/mean": _mean(rewards),
        "critic/rewards/max": max(rewards),
        "critic/rewards/min": min(rewards),
        "critic/advantages/mean": _mean(advantages),
        "critic/returns/mean": _mean(advantages),
        **_critic(trained),
        "actor/entropy": sums.entropy / num_loss_tokens,
        "actor/pg_loss": _mean([update.sums.policy_loss / update.denominator for update in trained.updates]),
        "actor/kl_loss": sums.kl / num_loss_tokens,
        "actor/ppo_kl": sums.ppo_kl / num_loss_tokens,
        "actor/pg_clipfrac": sums.clipped / num_loss_tokens,
        "actor/grad_norm": _mean([update.update.grad_norm for update in trained.updates]),
        "actor/lr": trained.updates[-1].update.learning_rate,
        "actor/num_updates": len(trained.updates),
        "rollout_corr/log_prob_mismatch_mean": trained.mean_mismatch or 0.0,
        "rollout_corr/log_prob_mismatch_max": trained.updates[0].sums.mismatch_max,
        "rollout_corr/off_policy_token_share": off_policy_token_share(samples),
        **correction_metrics(sums.correction),
        **_selection(selection_bias(result.started, reward_range)),
        **_optional("selection/shorter_again", shorter_again),
        "trainer/compute_s": trained.compute_s,
        "trainer/waiting_ratio": max(0.0, 1.0 - trained.compute_s / (times.step_s - times.publish_s)),
        "trainer/first_dispatch_s": trained.first_dispatch_s,
        **_optional("trainer/first_gradient_s", trained.first_gradient_s),
        **_optional("trainer/gradient_difference", trained.gradient_difference),
        **_rewards(result),
        "reward/timed_out": sum(one.timed_out for one in responses),
        "round/is_long": float(result.end.kind is RoundKind.LONG),
        "round/queue_length": queue_length,
        "round/num_launched": result.num_launched,
        "round/num_preemptions": result.num_preemptions,
        "round/num_steps": result.num_steps,
        **_optional("round/prefix_cache_hits", _share(result.num_cached_tokens, result.num_prompt_tokens)),
        "draws/zero_variance": sum(map(has_zero_variance, result.groups)) + len(result.dropped),
        "draws/dropped": len(result.dropped),
        "draws/rejected": len(result.rejected),
        **_episodes(
            [one.completion.episode for one in responses if one.completion.episode is not None],
            result.episode_failures,
        ),
    }


def _episodes(episodes: Sequence[Episode], failures: Mapping[FailureCause, int]) -> dict[str, float]:
    """Return the metrics of responses that acted in an environment; none if none did."""
    if not episodes:
        return {}
    turns, seconds = [one.num_turns for one in episodes], sorted(one.environment_s for one in episodes)
    return {
        "num_turns/mean": _mean(turns),
        "num_turns/max": max(turns),
        "num_turns/min": min(turns),
        "turn_tokens/mean": sum(one.length.num_tokens - one.length.observed_tokens for one in episodes) / sum(turns),
        "num_branches/mean": _mean([len(one.branches) for one in episodes]),
        "environment_s/p50": seconds[len(seconds) // 2],
        "environment_s/p99": seconds[(99 * (len(seconds) - 1)) // 100],
        "episodes/failed_calls": sum(one.num_failed_calls for one in episodes),
        "episodes/restarts": sum(one.num_restarts for one in episodes),
        **{f"episodes/failed/{cause}": failures.get(cause, 0) for cause in get_args(FailureCause)},
    }


def _critic(trained: StepTraining) -> dict[str, float]:
    """Return the metrics of a critic, named and defined as in verl; empty without one."""
    known = [one for one in trained.samples if one.values is not None and one.returns is not None]
    reports = [update.update.critic for update in trained.updates if update.update.critic is not None]
    if not known:
        return {}
    values = np.concatenate([one.values[one.has_return] for one in known if one.values is not None])
    returns = np.concatenate([one.returns[one.has_return] for one in known if one.returns is not None])
    num_tokens, sums = max(1, trained.sums.critic.num_tokens), trained.sums.critic
    unexplained = (returns - values).var(dtype=np.float64) / (returns.var(dtype=np.float64) + _LEAST_VARIANCE)
    return {
        "critic/values/mean": float(values.mean(dtype=np.float64)),
        "critic/values/max": float(values.max()),
        "critic/values/min": float(values.min()),
        "critic/returns/mean": float(returns.mean(dtype=np.float64)),
        "critic/vf_loss": sums.loss / num_tokens,
        "critic/vf_clipfrac": sums.clipped / num_tokens,
        "critic/vf_explained_var": 1.0 - float(unexplained),
        **({"critic/grad_norm": _mean([one.grad_norm for one in reports])} if reports else {}),
        **({"critic/lr": reports[-1].learning_rate} if reports else {}),
    }


def correction_metrics(sums: CorrectionSums) -> dict[str, float]:
    """Return the metrics of the rollout correction, named and defined as in verl; empty without a correction."""
    if not sums.num_tokens:
        return {}
    num_tokens = sums.num_tokens
    mean, mean_square = sums.bounded / num_tokens, sums.bounded_squared / num_tokens
    values = {
        "rollout_is_mean": sums.weight / num_tokens,
        "rollout_is_max": sums.weight_max,
        "rollout_is_min": sums.weight_min,
        "rollout_is_std": math.sqrt(max(0.0, mean_square - mean**2)),
        "rollout_is_eff_sample_size": mean**2 / mean_square,
        "rollout_is_ratio_fraction_high": sums.high / sums.num_compared,
        "rollout_is_ratio_fraction_low": sums.low / sums.num_compared,
        "rollout_rs_masked_fraction": sums.num_rejected_tokens / num_tokens,
        "rollout_rs_seq_masked_fraction": sums.num_rejected_responses / sums.num_responses,
        "kl": sums.kl / num_tokens,
        "k3_kl": sums.k3_kl / num_tokens,
    }
    return {f"rollout_corr/{name}": value for name, value in values.items()}


def repurposing_metrics(times: RepurposingTimes | None) -> dict[str, float]:
    """Return the metrics of a repurposing; none for a step without one."""
    if times is None:
        return {}
    return {
        "repurpose/control_path_s": times.control_path_s,
        "repurpose/apply_s": times.apply_s,
        "repurpose/num_moved": times.num_moved,
        **_optional("repurpose/saved_s", times.saved_s),
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _optional(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}


def _rewards(result: RoundResult) -> dict[str, float]:
    """Return mean rewards by function and by domain, and how scoring kept up with the rollout."""
    stats = result.rewards
    values: dict[str, list[float]] = {}
    for group in result.groups:
        for one in group.responses:
            if group.domain:
                values.setdefault(f"reward/domain/{group.domain}/mean", []).append(one.reward)
            for name, part in one.parts.items():
                values.setdefault(f"reward/{name}/mean", []).append(part)
    return {
        **{name: _mean(parts) for name, parts in values.items()},
        **{f"reward/{name}/seconds": stats.seconds[name] / stats.num_scored[name] for name in stats.num_scored},
        "reward/max_queue_depth": stats.max_depth,
        "reward/max_wait_s": stats.max_wait_s,
        "reward/faults": stats.num_faults,
        "reward/broke_sandbox": stats.num_broken,
    }


def _selection(bias: SelectionBias) -> dict[str, float]:
    """Return the selection bias, also by difficulty: quarters of the range of rewards, from 0 (hardest) to 3."""
    return {"selection/length_ratio": bias.overall.length_ratio} | {
        f"selection/{name}/difficulty_{place}": value
        for place, selected in enumerate(bias.by_difficulty)
        if selected.num_groups
        for name, value in (("length_ratio", selected.length_ratio), ("reward", selected.mean_reward))
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
