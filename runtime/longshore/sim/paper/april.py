"""APRIL (arXiv 2509.18521): rollout throughput of partial rollout against a baseline without.

Stated: Qwen3-4B and 8B on eight MI300X, 32 prompts x 8 responses, 64 groups started with APRIL, a limit of 16,384
tokens, at most five policy versions seen, deviations of lengths within prompts and over batches. Throughput is tokens
of the batch per second of rollout (section 3.2.1). DAPO samples more prompts than it trains on and keeps the first
whose rewards differ (RollPacker, section 7); here as many as APRIL starts, in both systems. Nothing tells the three
datasets apart.
"""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from longshore.api.rollout import Engine, OnPolicy, PartialRollout, Rollout, Strategy, TailBatching
from longshore.api.runtime_status import RoundKind
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import GpuPool, SimJob, TrainerLayout
from longshore.sim.lengths import Accuracy, LognormalLengths
from longshore.sim.paper.calibration import CONVENTION, Constant, solve
from longshore.sim.paper.published import Baselines
from longshore.sim.paper.workload import deviation_tokens, prompt_share
from longshore.sim.result import StepRecord
from longshore.sim.simulate import simulate

SHAPE: Final = BatchShape(num_prompts=32, num_responses=8)
MODEL_NAMES: Final = ("4B", "8B")
OBJECTIVES: Final = ("GRPO", "DAPO")
DATASETS: Final = ("dapo-math-17k", "DeepScaleR", "DeepMath-103K")
_MAX_TOKENS: Final = 16_384
_FACTOR: Final = 2.0
"""64 groups for 32."""
_NUM_STEPS: Final = 12
_WARM_UP_STEPS: Final = 4
"""Until as many partial responses come as go."""
_NUM_SEEDS: Final = 2


@dataclass(frozen=True)
class AprilConstants:
    """One value each for all models and datasets."""

    median_tokens: float = 4000.0
    memory_share: float = 0.8
    sigma: float = 0.9
    prompt_share_grpo: float = 0.8
    prompt_share_dapo: float = 0.8

    def listed(self) -> tuple[Constant, ...]:
        """With what they were found from."""
        return (
            Constant("median length", self.median_tokens, "tokens", CONVENTION + " more than: a few thousand"),
            Constant("GPU memory of engines", self.memory_share, "share", CONVENTION),
            Constant("deviation of log length", self.sigma, "", "deviation over a batch, section 3.2.3"),
            Constant("variance of log length that belongs to the prompt, GRPO", self.prompt_share_grpo, "share",
                     "deviations within prompts and over batches, section 3.2.3"),
            Constant("variance of log length that belongs to the prompt, DAPO", self.prompt_share_dapo, "share",
                     "deviations within prompts and over batches, section 3.2.3"),
        )  # fmt: skip

    def lengths(self, objective: str, seed: int) -> LognormalLengths:
        """Cut at the limit."""
        share = self.prompt_share_grpo if objective == "GRPO" else self.prompt_share_dapo
        return LognormalLengths(self.median_tokens, self.sigma, _MAX_TOKENS, prompt_share=share, seed=seed)


def calibrate(baselines: Baselines) -> AprilConstants:
    """From the two deviations."""
    constants = AprilConstants()
    sigma = solve(
        lambda each: deviation_tokens(replace(constants, sigma=each).lengths("GRPO", 0)),
        baselines["april/3.2.3/batch_sigma"],
        0.2,
        2.0,
    )
    shares = [prompt_share(baselines, constants.median_tokens, sigma, _MAX_TOKENS, name) for name in OBJECTIVES]
    return replace(constants, sigma=sigma, prompt_share_grpo=shares[0], prompt_share_dapo=shares[1])


def job(constants: AprilConstants, model: str, objective: str, seed: int, *, partial: bool) -> SimJob:
    """APRIL, or the baseline."""
    dynamic = objective == "DAPO"
    baseline = Strategy.TAIL_BATCHING if dynamic else Strategy.SYNCHRONOUS
    return SimJob(
        rollout=Rollout(
            on_policy=OnPolicy.RELAXED,
            strategy=Strategy.PARTIAL_ROLLOUT if partial else baseline,
            partial_rollout=PartialRollout(group_factor=_FACTOR),
            tail_batching=TailBatching(prompt_factor=_FACTOR, response_factor=1.0),
            engine=Engine(gpu_memory_utilization=constants.memory_share),
        ),
        shape=SHAPE,
        model=MODELS[f"Qwen3-{model}"],
        gpus=GpuPool(GPUS["MI300X"], 8),
        lengths=constants.lengths(objective, seed),
        trainer=TrainerLayout(num_extra_forwards=1),  # slime computes old log-probabilities.
        accuracy=Accuracy(seed=seed),
        dynamic_sampling=dynamic,
        seed=seed,
    )


def predict(constants: AprilConstants) -> dict[str, float]:
    """By figure; the same for all datasets."""
    predicted: dict[str, float] = {}
    stale: list[float] = []
    for model in MODEL_NAMES:
        for objective in OBJECTIVES:
            baseline, april = (
                [step for seed in range(_NUM_SEEDS) for step in _steps(constants, model, objective, seed, partial)]
                for partial in (False, True)
            )
            gain = 100 * (_tokens_per_s(april) / _tokens_per_s(baseline) - 1)
            predicted |= {f"april/3.2.1/{model}/{objective}/{dataset}": gain for dataset in DATASETS}
            stale += [step.off_policy_share for step in april]
    return predicted | {"april/3.2.3/stale": 100 * fmean(stale)} | _fitted(constants)


def _steps(constants: AprilConstants, model: str, objective: str, seed: int, partial: bool) -> list[StepRecord]:
    """Of a baseline that samples too much, only the rounds that take the first groups: it throws the rest away."""
    result = simulate(job(constants, model, objective, seed, partial=partial), _NUM_STEPS, keeps_spans=False)
    return [step for step in result.steps[_WARM_UP_STEPS:] if step.kind is not RoundKind.LONG]


def _tokens_per_s(steps: list[StepRecord]) -> float:
    return sum(step.num_trained_tokens for step in steps) / sum(step.rollout_s for step in steps)


def _fitted(constants: AprilConstants) -> dict[str, float]:
    return {"april/3.2.3/batch_sigma": deviation_tokens(constants.lengths("GRPO", 0))}
