"""APRIL (arXiv 2509.18521): rollout throughput of partial rollout against a baseline without.

Stated: Qwen3-4B and 8B on eight MI300X, 32 prompts x 8 responses, 64 groups started with APRIL, a limit of 16,384
tokens, deviations of lengths within prompts and over batches. The published scripts add tensor-parallel size 2 and 0.6
of the memory, no limit on concurrency below that of the engine, and lots of 32 groups for the baseline
(`longshore.sim.paper.slime`). Nothing tells the three datasets apart.

Both measures are the paper's. Throughput is tokens generated in a rollout over its time (section 3.2.1), those of
dropped groups and unfinished responses included. Tokens are carried over (section 3.2.3) that the last step generated
of responses which it cut off and this one resumes; their share is of these and of what this step generates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from longshore.api.rollout import EngineSettings, OnPolicy, Rollout, Strategy
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import GpuPool, SimJob, TrainerLayout
from longshore.sim.lengths import Accuracy
from longshore.sim.paper.calibration import Constant
from longshore.sim.paper.published import Baselines
from longshore.sim.paper.slime import slime_policy
from longshore.sim.paper.workload import Qwen3Lengths, deviation_tokens, qwen3_lengths
from longshore.sim.profile import Profile
from longshore.sim.result import StepRecord
from longshore.sim.simulate import simulate

SHAPE: Final = BatchShape(num_prompts=32, num_responses=8)
MODEL_NAMES: Final = ("4B", "8B")
OBJECTIVES: Final = ("GRPO", "DAPO")
DATASETS: Final = ("dapo-math-17k", "DeepScaleR", "DeepMath-103K")
_MAX_TOKENS: Final = 16_384
_LOT: Final = 64
"""Groups that APRIL starts at once."""
_NUM_STEPS: Final = 12
_WARM_UP_STEPS: Final = 4
"""Until as many partial responses come as go."""
_NUM_SEEDS: Final = 2
_SCRIPTS: Final = "published scripts"


@dataclass(frozen=True)
class AprilConstants:
    """One value each for all models, objectives and datasets."""

    lengths: Qwen3Lengths = field(default_factory=Qwen3Lengths)
    tp_size: int = 2
    memory_share: float = 0.6
    max_num_seqs: int = 512
    accuracy: float = 0.75
    profile: Profile = field(default_factory=Profile)
    """Costs of the engines, where they are not the simulator's."""

    def listed(self) -> tuple[Constant, ...]:
        """Return the constants with what they were found from."""
        return (
            *self.lengths.listed(),
            Constant("variance of log length that belongs to the prompt, DAPO", self.lengths.prompt_share_dapo, "share",
                     "deviations within prompts and over batches, section 3.2.3"),
            Constant("tensor-parallel size", self.tp_size, "GPUs", _SCRIPTS),
            Constant("GPU memory of engines", self.memory_share, "share", _SCRIPTS),
            Constant("requests at once", self.max_num_seqs, "per engine", f"{_SCRIPTS}: slime's default"),
            Constant("right answers", self.accuracy, "share",
                     "convention: about what Qwen3 reports of itself on AIME 2024"),
        )  # fmt: skip


def calibrate(baselines: Baselines) -> AprilConstants:
    """Return the constants that fit the two published deviations."""
    return AprilConstants(qwen3_lengths(baselines))


def job(constants: AprilConstants, model: str, objective: str, seed: int) -> SimJob:
    """Return the job of APRIL or of its baseline, which differ by `slime_policy` alone."""
    dapo = objective == "DAPO"
    return SimJob(
        rollout=Rollout(
            on_policy=OnPolicy.RELAXED,
            strategy=Strategy.PARTIAL_ROLLOUT,
            engine=EngineSettings(
                tensor_parallel_size=constants.tp_size,
                max_num_seqs=constants.max_num_seqs,
                gpu_memory_utilization=constants.memory_share,
            ),
        ),
        shape=SHAPE,
        model=MODELS[f"Qwen3-{model}"],
        gpus=GpuPool(GPUS["MI300X"], 8),
        lengths=constants.lengths.under(_MAX_TOKENS, seed, dapo=dapo),
        trainer=TrainerLayout(num_extra_forwards=1),  # slime computes old log-probabilities.
        accuracy=Accuracy(mean=constants.accuracy, seed=seed),
        profile=constants.profile,
        dynamic_sampling=dapo,
        samples_with_sglang=True,
        seed=seed,
    )


def predict(constants: AprilConstants, *, num_steps: int = _NUM_STEPS, num_seeds: int = _NUM_SEEDS) -> dict[str, float]:
    """Return predictions by figure; the same for all datasets. Pass fewer steps and seeds only to see it run."""
    predicted: dict[str, float] = {}
    of_april: list[StepRecord] = []
    for model in MODEL_NAMES:
        for objective in OBJECTIVES:
            baseline, april = (_steps(constants, model, objective, lot, num_steps, num_seeds) for lot in (None, _LOT))
            gain = 100 * (_tokens_per_s(april) / _tokens_per_s(baseline) - 1)
            predicted |= {f"april/3.2.1/{model}/{objective}/{dataset}": gain for dataset in DATASETS}
            of_april += april if objective == "GRPO" else []
    batch_sigma = deviation_tokens(constants.lengths.under(_MAX_TOKENS, 0))
    return predicted | {
        "april/3.2.3/carried_over": 100 * _carried_over(of_april),
        "april/3.2.3/batch_sigma": batch_sigma,
    }


@dataclass(frozen=True)
class Sensitivity:
    """What comes out where something that the paper leaves open is otherwise: 4B only."""

    changed: str
    grpo_gain: float
    """In per cent."""
    dapo_gain: float
    carried_over: float
    """In per cent."""


def sensitivity(baselines: Baselines) -> list[Sensitivity]:
    """Return the predictions with one thing changed at a time."""
    usual = calibrate(baselines)
    changes: Mapping[str, AprilConstants] = {
        "nothing": usual,
        **{
            f"median length {median:,.0f} tokens": replace(usual, lengths=qwen3_lengths(baselines, median))
            for median in (2_000.0, 4_000.0, 6_000.0)
        },
        "tensor-parallel size 1": replace(usual, tp_size=1),
        "32 requests at once per engine": replace(usual, max_num_seqs=32),
        "a decode step costs 6 ms instead of 2 ms besides reading": _with_profile(usual, step_overhead_s=0.006),
    }
    return [_sensitivity(changed, constants) for changed, constants in changes.items()]


def _with_profile(constants: AprilConstants, **costs: Any) -> AprilConstants:
    return replace(constants, profile=constants.profile.model_copy(update=costs))


def _sensitivity(changed: str, constants: AprilConstants) -> Sensitivity:
    gains, carried_over = {}, {}
    for objective in OBJECTIVES:
        baseline, april = (_steps(constants, MODEL_NAMES[0], objective, lot) for lot in (None, _LOT))
        gains[objective] = 100 * (_tokens_per_s(april) / _tokens_per_s(baseline) - 1)
        carried_over[objective] = 100 * _carried_over(april)
    return Sensitivity(changed, gains["GRPO"], gains["DAPO"], carried_over["GRPO"])


def _steps(
    constants: AprilConstants,
    model: str,
    objective: str,
    lot: int | None,
    num_steps: int = _NUM_STEPS,
    num_seeds: int = _NUM_SEEDS,
) -> list[StepRecord]:
    """Return the steps of all seeds, once as many partial responses come as go."""
    steps: list[StepRecord] = []
    for seed in range(num_seeds):
        sim_job = job(constants, model, objective, seed)
        cursor = DrawCursor(sim_job.num_prompts, seed)
        policy = slime_policy(SHAPE, cursor, lot, dynamic_sampling=sim_job.dynamic_sampling)
        steps += simulate(sim_job, num_steps, keeps_spans=False, policy=policy).steps[_WARM_UP_STEPS:]
    return steps


def _tokens_per_s(steps: list[StepRecord]) -> float:
    return sum(step.num_sampled_tokens for step in steps) / sum(step.rollout_s for step in steps)


def _carried_over(steps: list[StepRecord]) -> float:
    resumed = sum(step.num_resumed_tokens for step in steps)
    sampled = sum(step.num_sampled_tokens for step in steps)
    return resumed / (resumed + sampled)
