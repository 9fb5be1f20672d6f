"""Metrics that verl has, too, are called as they are there: people search for them and compare runs by them."""

from dataclasses import replace
from typing import Final

from longshore.api.rollout import Strategy
from longshore_runtime.backends.sums import CorrectionSums
from longshore_runtime.telemetry.step_metrics import StepTimes, correction_metrics, step_metrics
from tests.unit.runtime.scripted import ScriptedEngines, build, runner
from tests.unit.runtime.test_alarms import trained, with_critic


def names(prefix: str, *last: str) -> set[str]:
    return {f"{prefix}/{one}" for one in last}


ALIKE: Final = (
    names("timing_s", "gen", "reward", "old_log_prob", "values", "update_actor", "update_weights", "step")
    | names("perf", "total_num_tokens", "time_per_step", "throughput")
    | names("response_length", "mean", "max", "min", "clip_ratio")
    | names("response", "aborted_ratio")
    | names("prompt_length", "mean", "max")
    | names("critic", "score/mean", "rewards/mean", "rewards/max", "rewards/min", "advantages/mean", "returns/mean")
    | names("critic", "values/mean", "values/max", "values/min", "vf_loss", "vf_clipfrac", "vf_explained_var")
    | names("critic", "grad_norm", "lr")
    | names("actor", "pg_loss", "kl_loss", "entropy", "ppo_kl", "pg_clipfrac", "grad_norm", "lr")
    | names("rollout_corr", "rollout_is_mean", "rollout_is_max", "rollout_is_min", "rollout_is_std")
    | names("rollout_corr", "rollout_is_eff_sample_size")
    | names("rollout_corr", "rollout_is_ratio_fraction_high", "rollout_is_ratio_fraction_low")
    | names("rollout_corr", "rollout_rs_masked_fraction", "rollout_rs_seq_masked_fraction", "kl", "k3_kl")
)
"""As verl's `compute_data_metrics`, `compute_timing_metrics` and `compute_throughout_metrics`, its trainer, its actor
and its rollout correction call them."""
OURS: Final = (
    names("timing_s", "regroup")
    | names("perf", "bubble_share")
    | names("response_length", "p75")
    | names("response", "sampled_tokens", "dropped_token_ratio")
    | names("actor", "num_updates")
    | names("rollout_corr", "log_prob_mismatch_mean", "log_prob_mismatch_max", "off_policy_token_share")
)
"""Beside these, and nothing that verl has."""


def written() -> set[str]:
    result = runner(ScriptedEngines(), build(Strategy.SYNCHRONOUS)).run(draining=False)
    times = StepTimes(step_s=9.0, regroup_s=0.0, gen_s=5.0, reward_s=1.0, train_s=2.0, publish_s=1.0)
    training = with_critic(replace(trained(result), old_log_probs_s=1.0))
    correction = CorrectionSums(num_tokens=4, num_compared=4, num_responses=1, bounded=4.0, bounded_squared=4.0)
    return {*step_metrics(result, training, times, 0, num_gpus=1), *correction_metrics(correction)}


def test_a_metric_that_verl_has_keeps_verls_name() -> None:
    groups = {name.split("/")[0] for name in ALIKE}
    assert {name for name in written() if name.split("/")[0] in groups} == ALIKE | OURS
