"""RollPacker (arXiv 2509.21009): what is stated, what is open, and the jobs of its experiments.

Stated: models and length limits, GPUs, rollout TP, training (TP, PP, CP), P0 = 128, R0 = 8, eta = 1.25, timeouts of 2
to 30 s with lambda = 1.5, P75 and the ratio of longest to median response at 14B/16k. Lengths are lognormal, with the
median and the deviation that fit both best, and scale with the limit: the ratio of longest to median is the only thing
that the paper says of other limits too. Changing the tensor-parallel size costs nothing ("negligible", section 4.2).
The published configurations (`examples` of its code, those with 128 x 8 responses) add the memory of the engines,
requests at once, and reference solutions whose run times are known, which the adaptive timeout begins with. Qwen3-8B
in section 4.2 thinks before it answers: its lengths are APRIL's.

What Table 1 calls training is computation, switches and publication as the simulator has them everywhere, and the way
of the batch through the one controller, which pads every response to the limit. The last is found from the figure.
Section 6.7 states that training takes longer with a larger batch although GPUs grow with it, as only this does.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist, fmean
from typing import Final

from longshore.api.rollout import EngineSettings, Rollout, Strategy, TailBatchingSettings
from longshore.api.round_status import RoundKind
from longshore.policy.adaptive_timeout import TimeoutSettings
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.sim.costs import Costs
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import GpuPool, Rewards, SimJob, TrainerLayout, Training
from longshore.sim.lengths import Accuracy, LengthModel, LognormalLengths
from longshore.sim.paper.calibration import Constant, solve
from longshore.sim.paper.published import Baselines
from longshore.sim.paper.workload import Qwen3Lengths, prompt_share, qwen3_lengths
from longshore.sim.profile import Profile
from longshore.sim.rewards import (
    CodeRewards,
    JudgeRewards,
    MathsRewards,
    MixedRewards,
    RewardStage,
    RewardTimes,
    Scoring,
)
from longshore.sim.simulate import simulate

SHAPE: Final = BatchShape(num_prompts=128, num_responses=8)
ETA: Final = 1.25
_GPU: Final = GPUS["H800"]
_WORKERS_PER_GPU: Final = 2
"""Workers of the reward stage for each GPU: a convention, since only time per worker counts. More GPUs have
more workers, as in section 6.7 and in the published configurations."""
_MAX_NUM_SEQS: Final = 2_048
"""Largest number of requests that an engine runs at once, as the paper configures it."""
_NUM_EXTRA_FORWARDS: Final = 2
"""Old and reference log-probabilities: the actor has a reference model (section 2.1)."""
_CALIBRATION_STEPS: Final = 5
_MIN_RUN_S: Final = 0.05
"""Starting an interpreter; a program does not take less."""
_SAMPLE: Final = 500
"""Prompts over which shares of a workload are computed."""


@dataclass(frozen=True)
class Setting:
    """A row of section 6's configuration."""

    model: str
    max_tokens: int
    num_gpus: int
    tp_size: int
    gpus_per_replica: int
    """TP x PP x CP of training."""


SETTINGS: Final[Mapping[str, Setting]] = {
    "7B": Setting("Qwen2.5-7B", 8_192, 16, 1, 2),
    "14B": Setting("Qwen2.5-14B", 16_384, 32, 2, 8),
    "32B": Setting("Qwen2.5-32B", 32_768, 64, 2, 16),
}


class Task(StrEnum):
    """Datasets; section 6.1 mixes the first three uniformly."""

    MATHS = "math"
    CODE = "code"
    JUDGE = "judge"
    MIXED = "mixed"


@dataclass(frozen=True)
class RollPackerConstants:
    """One value each for all models and experiments."""

    median_share: float = 1 / 28.5
    sigma: float = 1.0
    prompt_share: float = 0.8
    memory_share: float = 0.85
    step_overhead_s: float = 0.002
    padded_token_s: float = 0.0
    maths_s: float = 0.5
    judge_s: float = 1.0
    sandbox_run_s: float = 0.1
    hanging_share: float = 0.01
    qwen3: Qwen3Lengths = field(default_factory=Qwen3Lengths)
    """Section 4.2."""

    def listed(self) -> tuple[Constant, ...]:
        """Return the constants with what they were found from."""
        table1 = "Table 1, mean of tasks"
        return (
            Constant("median length", self.median_share, "of the limit", "longest over median, section 1"),
            Constant("deviation of log length", self.sigma, "",
                     "longest over median, section 1, and P75 at 14B/16k, section 2.2: least squares"),
            Constant("variance of log length that belongs to the prompt", self.prompt_share, "share",
                     "deviations within prompts and over batches, APRIL, section 3.2.3"),
            Constant("GPU memory of engines", self.memory_share, "share", "published configurations"),
            Constant("overhead of a decode step", self.step_overhead_s, "s", "Table 3, without scaling"),
            Constant("controller, per token of the padded batch", self.padded_token_s, "s",
                     f"{table1}, training over rollout"),
            Constant("verifying a maths answer", self.maths_s, "worker s", "Table 1, reward over rollout on math"),
            Constant("judging a response", self.judge_s, "worker s", "Table 1, reward over rollout on judge"),
            Constant("running a program", self.sandbox_run_s, "worker s", "Table 1, reward over rollout on code"),
            Constant("wrong programs that hang", self.hanging_share, "share", "prompts that time out, section 4.3"),
            *self.qwen3.listed(),
        )  # fmt: skip

    def reward_times(self, task: Task, seed: int) -> RewardTimes:
        """Return the times of the verifiers of a task."""
        times: dict[Task, RewardTimes] = {
            Task.MATHS: MathsRewards(self.maths_s),
            Task.CODE: CodeRewards(self.sandbox_run_s, self.hanging_share, seed=seed),
            Task.JUDGE: JudgeRewards(self.judge_s, per_token_s=0.0),
        }
        return times.get(task) or MixedRewards(tuple(times.values()))

    def lengths(self, max_tokens: int, seed: int) -> LognormalLengths:
        """Return the lengths under a limit."""
        median = self.median_share * max_tokens
        return LognormalLengths(median, self.sigma, max_tokens, prompt_share=self.prompt_share, seed=seed)


@dataclass(frozen=True)
class ExperimentVariant:
    """What an experiment turns on; the defaults are veRL's."""

    strategy: Strategy = Strategy.SYNCHRONOUS
    prompt_factor: float = ETA
    response_factor: float = ETA
    asynchronous_rewards: bool = False
    adaptive_timeout: bool = False
    plans_parallelism: bool = False
    streams: bool = False
    scale_down_at: float | None = None
    weighs_benefit: bool = False
    """Whether pods leave the rollout only if that pays, as in Longshore. RollPacker frees GPUs whenever memory permits
    (Algorithm 1)."""
    fetched_once_share: float | None = None
    hides_reference: bool = False
    """Reference log-probabilities are computed while the round runs."""
    scores_decide_races: bool = False
    """Whether responses count when they are scored, as in RollPacker's published code, and not when they end."""
    has_controller: bool = True
    """The batch passes one process, padded to the limit, as in veRL and ROLL. Longshore's trainer replicas get each
    response as it is, some while the round runs."""


VERL: Final = ExperimentVariant()
TAIL_BATCHING: Final = ExperimentVariant(Strategy.TAIL_BATCHING)
ASYNCHRONOUS: Final = replace(TAIL_BATCHING, asynchronous_rewards=True, scores_decide_races=True)
REWARD: Final = replace(ASYNCHRONOUS, adaptive_timeout=True)
PARALLELISM: Final = replace(REWARD, plans_parallelism=True)
ROLLPACKER: Final = replace(PARALLELISM, streams=True)
RLHFUSE: Final = ExperimentVariant(asynchronous_rewards=True, streams=True, hides_reference=True)
"""Strengthened as in section 6.1, which also says what is pipelined with its rollout."""


def job(
    constants: RollPackerConstants,
    setting: Setting,
    variant: ExperimentVariant,
    task: Task,
    seed: int,
    *,
    shape: BatchShape = SHAPE,
    lengths: LengthModel | None = None,
) -> SimJob:
    """Return the job of one experiment."""
    model = MODELS[setting.model]
    return SimJob(
        rollout=Rollout(
            strategy=variant.strategy,
            tail_batching=TailBatchingSettings(
                prompt_factor=variant.prompt_factor, response_factor=variant.response_factor
            ),
            engine=EngineSettings(
                tensor_parallel_size=setting.tp_size,
                max_num_seqs=_MAX_NUM_SEQS,
                gpu_memory_utilization=constants.memory_share,
            ),
        ),
        shape=shape,
        model=model,
        gpus=GpuPool(_GPU, setting.num_gpus),
        lengths=lengths or constants.lengths(setting.max_tokens, seed),
        trainer=TrainerLayout(
            Training.STREAMED if variant.streams else Training.AFTER_ROUND,
            gpus_per_replica=setting.gpus_per_replica,
            num_extra_forwards=_NUM_EXTRA_FORWARDS - variant.hides_reference,
            scale_down_at=variant.scale_down_at,
            weighs_benefit=variant.weighs_benefit,
            fetched_once_share=variant.fetched_once_share,
        ),
        rewards=Rewards(
            constants.reward_times(task, seed),
            _WORKERS_PER_GPU * setting.num_gpus,
            variant.asynchronous_rewards,
            TimeoutSettings() if variant.adaptive_timeout else None,
            knows_reference_times=variant.adaptive_timeout,
            decide_races=variant.scores_decide_races,
        ),
        accuracy=Accuracy(seed=seed),
        profile=_profile(constants, setting, shape, has_controller=variant.has_controller),
        plans_parallelism=variant.plans_parallelism,
        seed=seed,
    )


def _profile(constants: RollPackerConstants, setting: Setting, shape: BatchShape, *, has_controller: bool) -> Profile:
    """Return a profile in which the controller's part comes last, with the update: it overlaps with nothing."""
    costs, num_replicas = Costs(_GPU, MODELS[setting.model]), setting.num_gpus // setting.gpus_per_replica
    num_padded_tokens = shape.num_prompts * shape.num_responses * setting.max_tokens if has_controller else 0
    return Profile(
        step_overhead_s=constants.step_overhead_s,
        optimizer_s=costs.optimizer_s(setting.gpus_per_replica, num_replicas)
        + constants.padded_token_s * num_padded_tokens,
        regroup_s=0.0,
    )


# Calibration --------------------------------------------------------------------------------------------------------


def calibrate(baselines: Baselines) -> RollPackerConstants:
    """Calibrate lengths first, then engine and trainer together, then verifiers."""
    return _Calibration(baselines).constants


@dataclass(frozen=True)
class _Calibration:
    baselines: Baselines

    @cached_property
    def constants(self) -> RollPackerConstants:
        """All constants of the calibration."""
        timed = self._timed(self._lengths())
        rollout_s = _stages_s(timed)[0]
        timed = replace(
            timed,
            maths_s=self._reward_s(Task.MATHS, rollout_s) * _CALIBRATION_WORKERS / _num_samples(),
            judge_s=self._reward_s(Task.JUDGE, rollout_s) * _CALIBRATION_WORKERS / _num_samples(),
            hanging_share=_hanging_share(timed, self.baselines["rollpacker/4.3/timed_out_prompts"] / 100),
        )
        return replace(timed, sandbox_run_s=_sandbox_run_s(timed, self._reward_s(Task.CODE, rollout_s)))

    def _lengths(self) -> RollPackerConstants:
        ratio, p75 = self.baselines["rollpacker/1/max_over_median"], self.baselines["rollpacker/2.2/p75"]
        max_tokens = SETTINGS["14B"].max_tokens
        sigma = _least_squares({1 - 1 / _num_samples(): ratio, 0.75: p75 * ratio / max_tokens})
        share = prompt_share(self.baselines, max_tokens / ratio, sigma, max_tokens)
        qwen3 = qwen3_lengths(self.baselines)
        return RollPackerConstants(median_share=1 / ratio, sigma=sigma, prompt_share=share, qwen3=qwen3)

    def _timed(self, constants: RollPackerConstants) -> RollPackerConstants:
        target_s = self.baselines["rollpacker/table3/none/step"]

        def with_overhead(overhead_s: float) -> RollPackerConstants:
            return self._with_controller(replace(constants, step_overhead_s=overhead_s))

        overhead_s = solve(lambda each: _long_round_s(with_overhead(each)), target_s, 0.0, 0.008)
        return with_overhead(overhead_s)

    def _with_controller(self, constants: RollPackerConstants) -> RollPackerConstants:
        """Add the controller, which makes up for what the rest does not explain of Table 1."""
        rollout_s, train_s = _stages_s(replace(constants, padded_token_s=0.0))
        wanted_s = rollout_s * fmean(self._over_rollout(task, "training") for task in _TASKS)
        num_padded_tokens = _num_samples() * SETTINGS["14B"].max_tokens
        return replace(constants, padded_token_s=max(0.0, wanted_s - train_s) / num_padded_tokens)

    def _reward_s(self, task: Task, rollout_s: float) -> float:
        return rollout_s * self._over_rollout(task, "reward")

    def _over_rollout(self, task: Task, stage: str) -> float:
        return self.baselines[f"rollpacker/table1/{task}/{stage}"] / self.baselines[f"rollpacker/table1/{task}/rollout"]


_TASKS: Final = (Task.MATHS, Task.CODE, Task.JUDGE)
_CALIBRATION_WORKERS: Final = _WORKERS_PER_GPU * SETTINGS["14B"].num_gpus


def _num_samples() -> int:
    return SHAPE.num_prompts * SHAPE.num_responses


def _least_squares(over_median: Mapping[float, float]) -> float:
    """Return the deviation of a lognormal through given quantiles, as multiples of the median."""
    deviates = {NormalDist().inv_cdf(share): math.log(multiple) for share, multiple in over_median.items()}
    return sum(z * log for z, log in deviates.items()) / sum(z**2 for z in deviates)


def _stages_s(constants: RollPackerConstants) -> tuple[float, float]:
    """Return the seconds of rollout, and of training with switches and publication: 14B/16k with veRL."""
    sim_job = job(constants, SETTINGS["14B"], VERL, Task.MATHS, seed=0)
    steps = simulate(sim_job, _CALIBRATION_STEPS, keeps_spans=False).steps
    return fmean(step.rollout_s for step in steps), fmean(step.train_s + step.publish_s for step in steps)


def _long_round_s(constants: RollPackerConstants) -> float:
    """Return the step time of long rounds: 7B/8k on maths, no scaling."""
    steps = simulate(
        job(constants, SETTINGS["7B"], ASYNCHRONOUS, Task.MATHS, seed=0), 2 * _CALIBRATION_STEPS, keeps_spans=False
    ).steps
    return fmean(step.step_s for step in steps if step.kind is RoundKind.LONG)


def _hanging_share(constants: RollPackerConstants, timed_out_prompts: float) -> float:
    """Return the share of wrong responses that hang, for this share of prompts with a response that hangs."""
    lengths, accuracy = constants.lengths(SETTINGS["14B"].max_tokens, seed=0), Accuracy()
    right = [accuracy.probability(Draw(0, prompt), lengths.hardness(Draw(0, prompt))) for prompt in range(_SAMPLE)]

    def prompts(share: float) -> float:
        return fmean(1 - math.pow(1 - share * (1 - each), SHAPE.num_responses) for each in right)

    return solve(prompts, timed_out_prompts, 0.0, 1.0)


def _sandbox_run_s(constants: RollPackerConstants, target_s: float) -> float:
    """Return the run time with which the stage scores a batch in `target_s` after the rollout."""
    lengths, accuracy = constants.lengths(SETTINGS["14B"].max_tokens, seed=0), Accuracy()
    scorings = [
        Scoring(response, 1, accuracy.is_correct(response, lengths.hardness(response.draw)))
        for prompt in range(SHAPE.num_prompts)
        for response in (ResponseId(Draw(0, prompt), index) for index in range(SHAPE.num_responses))
    ]

    def stage_s(run_s: float) -> float:
        return RewardStage(CodeRewards(run_s, constants.hanging_share), _CALIBRATION_WORKERS).submit(scorings, 0.0)

    return solve(stage_s, target_s, _MIN_RUN_S, 10.0)
