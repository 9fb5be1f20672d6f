"""What a simulation found, as a model: the table and `--json` show the same figures."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from pydantic import Field

from longshore.api.base import ApiModel
from longshore.api.rollout import OnPolicy, Strategy
from longshore.api.spec import RLJobSpec
from longshore.sim.result import SimResult
from longshore_cli import format as fmt
from longshore_cli.simulate.advice import advice
from longshore_cli.simulate.inputs import Inputs
from longshore_cli.simulate.variants import SimulatedVariant, Skipped

_LARGE_BIAS: Final = 0.1
"""Bias, as a share of the mean length of trained responses, from which on it is reported."""
_REMEDIES: Final = {
    Strategy.TAIL_BATCHING: "rollout.tailBatching.responseFactor: 1 ends the race that drops the long ones",
}
_SHOWN: Final = 0.005
"""Share of a step from which a part of it is shown."""
_LONG_WAIT: Final = 0.1
"""Share of a step from which waiting for rewards is reported."""


class StrategyResult(ApiModel):
    """One strategy on a number of GPUs; means over the simulated steps."""

    num_gpus: int
    strategy: Strategy
    on_policy: OnPolicy
    """Relaxed: it trains on tokens of older weights."""
    is_given: bool
    """Whether it is the manifest's own strategy."""
    step_s: float = Field(alias="stepSeconds")
    """The sum of the four below."""
    rollout_s: float = Field(alias="rolloutSeconds")
    reward_wait_s: float = Field(alias="rewardWaitSeconds")
    """From the end of the rollout until its last reward."""
    train_s: float = Field(alias="trainSeconds")
    """From then, with the switch to training."""
    publish_s: float = Field(alias="publishSeconds")
    """From then, with the switch to rollout."""
    tokens_per_s: float = Field(alias="tokensPerSecond")
    """Trained response tokens."""
    samples_per_s: float = Field(alias="samplesPerSecond")
    """Trained responses."""
    bubble_share: float
    gpu_hours: float
    """GPU hours of algorithm.steps."""
    off_policy_share: float
    """Trained tokens that older weights had sampled."""
    speedup: float
    """Step time of Synchronous over step time of this."""
    token_speedup: float
    """The same at equal trained tokens: trained tokens per second over those of Synchronous."""
    length_bias: float
    """Mean length of trained responses over that of all responses of the same draws, less 1: it stays."""
    selection_bias: float
    """The same against all draws in play, those that wait included."""
    environment_share: float | None = None
    """Share of the time of episodes in which their environments were at work; unset without episodes."""
    num_preemptions: int
    num_groups_in_cache: int | None = None
    """GroupPipeline: groups in service that fill the KV cache of an engine; unset after a single step."""


class SkippedStrategy(ApiModel):
    """A strategy that was not simulated."""

    strategy: Strategy
    reason: str


class Report(ApiModel):
    """A whole simulation."""

    name: str
    """Name of the RLJob."""
    model: str
    gpu_type: str
    num_steps: int
    """Simulated."""
    outcomes: list[StrategyResult]
    skipped: list[SkippedStrategy]
    num_clipped_lengths: int
    """Responses of the trace that were cut at maxResponseTokens."""
    notes: list[str]
    """What was assumed."""
    advice: str
    """What to change in the manifest."""


def report(
    inputs: Inputs, runs: Sequence[SimulatedVariant], skipped: Sequence[Skipped], num_steps: int, notes: Sequence[str]
) -> Report:
    """Return all figures of the runs."""
    trace, hours_of = inputs.trace, inputs.spec.algorithm.steps
    outcomes = [outcome(run, _baseline(runs, run.num_gpus), hours_of) for run in runs]
    return Report(
        name=inputs.name,
        model=inputs.model.name,
        gpu_type=inputs.gpu.name,
        num_steps=num_steps,
        outcomes=outcomes,
        skipped=[SkippedStrategy(strategy=one.strategy, reason=one.reason) for one in skipped],
        num_clipped_lengths=trace.num_clipped if trace else 0,
        notes=[*notes, *_time_notes(outcomes), *_findings(outcomes, inputs.spec)],
        advice=advice(inputs.spec, runs),
    )


def outcome(run: SimulatedVariant, baseline: SimResult, num_steps: int) -> StrategyResult:
    """Return the figures of a run, for a job with this many steps."""
    result = run.result
    return StrategyResult(
        num_gpus=run.num_gpus,
        strategy=run.variant.strategy,
        on_policy=run.variant.on_policy,
        is_given=run.variant.is_given,
        step_s=result.mean_step_s,
        rollout_s=fmean(step.rollout_s for step in result.steps),
        reward_wait_s=fmean(step.reward_wait_s for step in result.steps),
        train_s=fmean(step.train_s for step in result.steps),
        publish_s=fmean(step.publish_s for step in result.steps),
        tokens_per_s=result.tokens_per_s,
        samples_per_s=result.samples_per_s,
        bubble_share=result.bubble_share,
        gpu_hours=result.gpu_hours / len(result.steps) * num_steps,
        off_policy_share=result.off_policy_share,
        speedup=baseline.mean_step_s / result.mean_step_s,
        token_speedup=result.tokens_per_s / baseline.tokens_per_s,
        length_bias=result.length_bias,
        selection_bias=result.selection_bias,
        environment_share=result.environment_share,
        num_preemptions=sum(step.num_preemptions for step in result.steps),
        num_groups_in_cache=result.num_groups_in_cache,
    )


def _baseline(runs: Sequence[SimulatedVariant], num_gpus: int) -> SimResult:
    """Return Synchronous on as many GPUs; it is always simulated."""
    return next(run.result for run in runs if run.num_gpus == num_gpus and run.variant.strategy is Strategy.SYNCHRONOUS)


def _time_notes(outcomes: Sequence[StrategyResult]) -> Iterator[str]:
    """Yield where the time of a step goes: with the manifest's own strategy, or else with the first one."""
    one = next((one for one in outcomes if one.is_given), outcomes[0])
    parts = {
        "sampling": one.rollout_s,
        "waiting for rewards": one.reward_wait_s,
        "training": one.train_s,
        "publishing weights": one.publish_s,
    }
    spent = [
        f"{fmt.duration(seconds)} {what} ({fmt.share(seconds / one.step_s)})"
        for what, seconds in parts.items()
        if seconds >= _SHOWN * one.step_s
    ]
    yield f"A step of {one.strategy} on {fmt.count(one.num_gpus, 'GPU')} takes {', '.join(spent)}."
    if one.environment_share is not None:
        strict = [other for other in outcomes if other.num_gpus == one.num_gpus and other.on_policy is OnPolicy.STRICT]
        best = max(strict, key=lambda other: other.samples_per_s)
        gain = f"{best.strategy} trains on {best.speedup:.2f} times as many of them per second as Synchronous"
        is_gain = best.strategy is not Strategy.SYNCHRONOUS
        share = f"Its episodes spend {fmt.share(one.environment_share)} of their time in environments"
        yield f"{share}; {gain}." if is_gain else f"{share}."


def _findings(outcomes: Sequence[StrategyResult], spec: RLJobSpec) -> Iterator[str]:
    """Yield what distorts the figures, or takes time that the user can win back."""
    engine, prompts = spec.rollout.engine, spec.algorithm.prompts_per_step
    kv_field = "gpuMemoryUtilization" if engine.kv_cache is None else "kvCache"
    has_several_sizes = len({one.num_gpus for one in outcomes}) > 1
    for one in outcomes:
        name = f"{one.strategy} on {one.num_gpus} GPUs" if has_several_sizes else str(one.strategy)
        if one.length_bias < -_LARGE_BIAS:
            by = fmt.share(-one.length_bias)
            yield (
                f"{name}: trained responses are {by} shorter than those of the same prompts, in however many steps; "
                f"{_REMEDIES.get(one.strategy, 'compare at equal tokens')}."
            )
        of_waiting = (1 + one.selection_bias) / (1 + one.length_bias) - 1
        if abs(of_waiting) > _LARGE_BIAS:
            word = "shorter" if of_waiting < 0 else "longer"
            by = fmt.share(abs(of_waiting))
            yield f"{name}: prompts that wait make trained responses {by} {word}; more --steps even that out."
        if one.reward_wait_s > _LONG_WAIT * one.step_s:
            yield (
                f"{name}: {fmt.duration(one.reward_wait_s)} of every step pass in waiting for rewards; "
                "raise reward.pods or reward.workersPerPod, or reward.requestsPerPod for judges and services elsewhere."
            )
        num_engines = max(1, one.num_gpus // engine.tensor_parallel_size)
        # An engine that holds its share of the step at once needs no bound.
        if one.num_groups_in_cache is not None and one.num_groups_in_cache * num_engines < prompts:
            groups = fmt.count(one.num_groups_in_cache, "group")
            yield (
                f"{name}: the KV cache of an engine holds {groups} in service, which it finds out in its first round; "
                f"rollout.admission.frontierWidth: {one.num_groups_in_cache} keeps to it from the start."
            )
        if one.num_preemptions:
            yield (
                f"{name}: engines preempted {fmt.count(one.num_preemptions, 'request')}; "
                f"raise {kv_field} or lower maxNumSeqs."
            )
