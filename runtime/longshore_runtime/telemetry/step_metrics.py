"""The metrics of one step, under the names that verl users search for. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from longshore.api.status import RoundKind
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.run_state import has_zero_variance
from longshore_runtime.types import FinishReason, Sample, TrainResult


@dataclass(frozen=True)
class StepTimes:
    """Where the time of a step went."""

    step_s: float
    gen_s: float
    reward_s: float
    """Waiting for rewards after the rollout; scoring during the rollout costs nothing."""
    train_s: float
    publish_s: float


@dataclass(frozen=True)
class Lengths:
    """Mean, quartile and maximum of response lengths, in tokens."""

    mean: float
    p75: float
    max: int
    min: int


def lengths(samples: Sequence[Sample]) -> Lengths:
    """Response lengths of a step."""
    values = sorted(len(sample.response_tokens) for sample in samples)
    return Lengths(_mean(values), float(values[(3 * (len(values) - 1)) // 4]), values[-1], values[0])


def step_metrics(
    result: RoundResult, samples: Sequence[Sample], trained: TrainResult, times: StepTimes, queue_length: int
) -> dict[str, float]:
    """All metrics of a step."""
    responses = [one for group in result.groups for one in group.responses]
    rewards = [sample.reward for sample in samples]
    advantages = [sample.advantage for sample in samples]
    response = lengths(samples)
    prompts = [len(sample.prompt_tokens) for sample in samples]
    sums, num_tokens = trained.sums, trained.sums.num_tokens
    total_tokens = num_tokens + sum(prompts)
    clipped = sum(one.completion.finish_reason is FinishReason.LENGTH for one in responses)
    return {
        "timing_s/gen": times.gen_s,
        "timing_s/reward": times.reward_s,
        "timing_s/update_actor": times.train_s,
        "timing_s/update_weights": times.publish_s,
        "timing_s/step": times.step_s,
        "perf/time_per_step": times.step_s,
        "perf/total_num_tokens": total_tokens,
        "perf/throughput": total_tokens / times.step_s,
        "perf/bubble_share": 1.0 - result.busy_share,
        "response_length/mean": response.mean,
        "response_length/p75": response.p75,
        "response_length/max": response.max,
        "response_length/min": response.min,
        "response_length/clip_ratio": clipped / len(responses),
        "response/aborted_ratio": result.num_aborted / result.num_launched if result.num_launched else 0.0,
        "response/sampled_tokens": result.num_sampled_tokens,
        "prompt_length/mean": _mean(prompts),
        "prompt_length/max": max(prompts),
        "critic/score/mean": _mean(rewards),
        "critic/rewards/mean": _mean(rewards),
        "critic/rewards/max": max(rewards),
        "critic/rewards/min": min(rewards),
        "critic/advantages/mean": _mean(advantages),
        "critic/returns/mean": _mean(advantages),
        "actor/entropy": sums.entropy / num_tokens,
        "actor/pg_loss": sums.policy_loss / num_tokens,
        "actor/kl_loss": sums.kl / num_tokens,
        "actor/ppo_kl": sums.ppo_kl / num_tokens,
        "actor/pg_clipfrac": sums.clipped / num_tokens,
        "actor/grad_norm": trained.update.grad_norm,
        "actor/lr": trained.update.learning_rate,
        "rollout_corr/log_prob_mismatch_mean": sums.mismatch / num_tokens,
        "rollout_corr/log_prob_mismatch_max": sums.mismatch_max,
        "reward/timed_out": sum(one.timed_out for one in responses),
        "round/is_long": float(result.end.kind is RoundKind.LONG),
        "round/queue_length": queue_length,
        "round/num_launched": result.num_launched,
        "round/num_preemptions": result.num_preemptions,
        "round/num_steps": result.num_steps,
        "draws/zero_variance": sum(map(has_zero_variance, result.groups)),
        "draws/rejected": len(result.rejected),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
