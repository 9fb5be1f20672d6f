"""Predictions for every figure of RollPacker (arXiv 2509.21009), section by section."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Final

from longshore.api.round_status import RoundKind
from longshore.policy.draws import Draw, DrawCursor
from longshore.policy.round import ResponseId
from longshore.policy.round_policy import BatchShape
from longshore.sim.lengths import LengthModel
from longshore.sim.paper import rollpacker
from longshore.sim.paper.published import span
from longshore.sim.paper.rollpacker import (
    ASYNCHRONOUS,
    PARALLELISM,
    REWARD,
    RLHFUSE,
    ROLLPACKER,
    SETTINGS,
    SHAPE,
    TAIL_BATCHING,
    VERL,
    ExperimentVariant,
    RollPackerConstants,
    Setting,
    Task,
)
from longshore.sim.paper.tasks import mixed_policy
from longshore.sim.result import StepRecord
from longshore.sim.simulate import simulate

_NUM_STEPS: Final = 10
"""Two periods of four short rounds and a long one."""
_PERIOD: Final = 5
_NUM_SEEDS: Final = 2
_FACTORS: Final = (1.125, 1.25, 1.5)
"""eta of section 6.3, beyond 1 (`run_8k.sh` of the published code)."""
_CODE_PROMPTS: Final = 44
"""Prompts of a batch of figure 13(c) (`plt_adaptive_timeout.py` of the published code)."""
_ADDED: Final = ("reward", "parallelism", "trainer")
"""Rows of Table 2 that add something to tail batching."""
_THINKING: Final = Setting("Qwen3-8B", 32_768, 8, 1, 8)
"""Section 4.2."""
_PLANNED: Final = Setting("Qwen2.5-14B", 32_768, 16, 1, 8)
"""Section 6.4."""
_SHORTEST: Final = 8_192
_LENGTH_STEP: Final = 1_024
Prediction = float | tuple[float, float]


def predict(
    constants: RollPackerConstants,
    *,
    shape: BatchShape = SHAPE,
    num_steps: int = _NUM_STEPS,
    num_seeds: int = _NUM_SEEDS,
) -> dict[str, Prediction]:
    """Return predictions by figure; ranges over models. Pass less than the defaults only to see it run."""
    runs = _Runs(constants, shape, num_steps, num_seeds)
    sections = (
        _table1, _tail_batching, _memory_pressure, _end_to_end, _sensitivity, _planner, _rewards, _stream_trainer,
        _scalability,
    )  # fmt: skip
    return {f"rollpacker/{key}": value for section in sections for key, value in section(runs).items()}


@dataclass(frozen=True)
class _Runs:
    constants: RollPackerConstants
    shape: BatchShape
    num_steps: int
    num_seeds: int

    @cache  # noqa: B019 (lives as long as one prediction)
    def steps(self, setting: Setting, variant: ExperimentVariant, task: Task = Task.MIXED) -> tuple[StepRecord, ...]:
        """Return the steps of all seeds."""
        return tuple(step for seed in range(self.num_seeds) for step in self._run(setting, variant, task, seed))

    @cache  # noqa: B019
    def few_steps(
        self, setting: Setting, variant: ExperimentVariant, task: Task = Task.MIXED, batches: int = 1
    ) -> tuple[StepRecord, ...]:
        """Return the steps of one seed, fewer of them where the batch is `batches` times as large."""
        return self._run(setting, variant, task, 0, batches)

    def step_s(self, setting: Setting, variant: ExperimentVariant) -> float:
        """Return the mean time of a step."""
        return _mean(self.steps(setting, variant, Task.MIXED), lambda step: step.step_s)

    def _run(
        self, setting: Setting, variant: ExperimentVariant, task: Task, seed: int, batches: int = 1
    ) -> tuple[StepRecord, ...]:
        shape = BatchShape(batches * self.shape.num_prompts, self.shape.num_responses)
        job = rollpacker.job(self.constants, setting, variant, task, seed, shape=shape)
        policy = mixed_policy(job) if task is Task.MIXED else None
        return simulate(job, self.num_steps if batches == 1 else _PERIOD, keeps_spans=False, policy=policy).steps


def _mean(steps: Iterable[StepRecord], of: Callable[[StepRecord], float], kind: RoundKind | None = None) -> float:
    return fmean(of(step) for step in steps if kind in (None, step.kind))


def _rollout_s(step: StepRecord) -> float:
    return step.rollout_s


def _reward_wait_s(step: StepRecord) -> float:
    return step.reward_wait_s


def _step_s(step: StepRecord) -> float:
    return step.step_s


def _num_preemptions(step: StepRecord) -> float:
    return step.num_preemptions


def _table1(runs: _Runs) -> dict[str, Prediction]:
    """Predict the shares of rollout, reward and training in a baseline step, to show how well it is met."""
    predicted: dict[str, Prediction] = {}
    for task in (Task.MATHS, Task.CODE, Task.JUDGE):
        steps = runs.few_steps(SETTINGS["14B"], VERL, task)
        total_s = _mean(steps, lambda step: step.step_s)
        predicted[f"table1/{task}/rollout"] = 100 * _mean(steps, lambda step: step.rollout_s) / total_s
        predicted[f"table1/{task}/reward"] = 100 * _mean(steps, lambda step: step.reward_wait_s) / total_s
        predicted[f"table1/{task}/training"] = 100 * _mean(steps, lambda step: step.train_s + step.publish_s) / total_s
    return predicted


def _tail_batching(runs: _Runs) -> dict[str, Prediction]:
    """Predict sections 3 and 4.3, on code, and section 6.2."""
    verl, steps = (runs.few_steps(SETTINGS["14B"], variant, Task.CODE) for variant in (VERL, TAIL_BATCHING))
    shortest = min(step.max_response_tokens for step in steps if step.kind is RoundKind.SHORT)
    reward_s, total_s = (math.fsum(map(of, steps)) for of in (_reward_wait_s, _step_s))
    large = SETTINGS["32B"]
    verl_s = _mean(runs.few_steps(large, VERL), _rollout_s)
    short_s = [step.rollout_s for step in runs.few_steps(large, TAIL_BATCHING) if step.kind is RoundKind.SHORT]
    return {
        "3/max_tokens": _mean(verl, lambda step: step.max_response_tokens) / shortest,
        "4.3/reward_share": 100 * reward_s / total_s,
        "6.2/rollout": verl_s / fmean(short_s),
    }


def _memory_pressure(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 4.2: one period on eight GPUs."""
    lengths = runs.constants.qwen3.under(_THINKING.max_tokens, seed=0)
    short: list[list[StepRecord]] = []
    long: list[list[StepRecord]] = []
    for tp_size in (1, 2):
        setting = replace(_THINKING, tp_size=tp_size)
        sim_job = rollpacker.job(
            runs.constants, setting, ASYNCHRONOUS, Task.MATHS, 0, shape=runs.shape, lengths=lengths
        )  # fmt: skip
        steps = simulate(sim_job, _PERIOD, keeps_spans=False).steps
        short.append([step for step in steps if step.kind is RoundKind.SHORT])
        long.append([step for step in steps if step.kind is RoundKind.LONG])
    most, of_long = max(map(_num_preemptions, short[0])), _mean(long[0], _num_preemptions)
    return {
        "4.2/preemptions/short": most / of_long if of_long else math.inf,
        "4.2/preemptions/tp2/short": _less(short, _num_preemptions),
        "4.2/preemptions/tp2/long": _less(long, _num_preemptions),
        "4.2/rollout/short": 100 * _mean(short[0], _rollout_s) / _mean(long[0], _rollout_s),
        "4.2/rollout/tp2/short": _less(short, _rollout_s),
    }


def _less(before_and_after: list[list[StepRecord]], of: Callable[[StepRecord], float]) -> float:
    """Return the per cent saved; nothing can be saved where there is nothing."""
    before, after = (_mean(steps, of) for steps in before_and_after)
    return 100 * (1 - after / before) if before else 0.0


def _end_to_end(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 6.1 and Table 2."""
    rows = {"baseline": VERL, "tail_batching": TAIL_BATCHING, "reward": REWARD, "parallelism": PARALLELISM,
            "trainer": ROLLPACKER}  # fmt: skip
    predicted: dict[str, Prediction] = {}
    short: dict[str, list[float]] = {"verl": [], "rlhfuse": []}
    for model, setting in SETTINGS.items():
        verl_s, rlhfuse_s = runs.step_s(setting, VERL), runs.step_s(setting, RLHFUSE)
        steps = runs.steps(setting, ROLLPACKER)
        short_s = _mean(steps, lambda step: step.step_s, RoundKind.SHORT)
        short["verl"].append(verl_s / short_s)
        short["rlhfuse"].append(rlhfuse_s / short_s)
        before_s = verl_s
        for row, variant in rows.items():
            time_s = runs.step_s(setting, variant)
            predicted[f"table2/{row}/{model}"] = verl_s / time_s
            if row in _ADDED:
                predicted[f"table2/increment/{row}/{model}"] = before_s / time_s
            before_s = time_s
        predicted[f"6.1/verl/{model}"] = verl_s / runs.step_s(setting, ROLLPACKER)
        predicted[f"6.1/rlhfuse/{model}"] = rlhfuse_s / runs.step_s(setting, ROLLPACKER)
    return predicted | {f"6.1/short/{system}": span(speedups) for system, speedups in short.items()}


def _sensitivity(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 6.3, on mathematics: against no speculation, and against the best of each kind of it."""
    rollout, prompts, responses = [], [], []
    for setting in SETTINGS.values():

        def rollout_s(prompt_factor: float, response_factor: float, setting: Setting = setting) -> float:
            variant = replace(TAIL_BATCHING, prompt_factor=prompt_factor, response_factor=response_factor)
            return period_s(runs.few_steps(setting, variant, Task.MATHS), prompt_factor)

        both_s = rollout_s(rollpacker.ETA, rollpacker.ETA)
        rollout.append(rollout_s(1.0, 1.0) / both_s)
        prompts.append(min(rollout_s(1.0, eta) for eta in _FACTORS) / both_s)
        responses.append(min(rollout_s(eta, 1.0) for eta in _FACTORS) / both_s)
    return {
        "6.3/rollout": max(rollout),
        "6.3/fixed_prompts": max(prompts),
        "6.3/fixed_responses": max(responses),
    }


def period_s(steps: Sequence[StepRecord], prompt_factor: float) -> float:
    """Return the mean seconds of a rollout over a period whose rounds take as long as the longest of their kind.

    Source: `plt_sensitive_squeezer.py` of the published code.
    """
    by_kind = {
        kind: max((step.rollout_s for step in steps if step.kind is kind), default=0.0)
        for kind in (RoundKind.SHORT, RoundKind.LONG)
    }
    if prompt_factor == 1.0:
        return by_kind[RoundKind.SHORT]
    num_short = round(1 / (prompt_factor - 1))
    return (num_short * by_kind[RoundKind.SHORT] + by_kind[RoundKind.LONG]) / (num_short + 1)


def _planner(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 6.4."""
    fixed, planned = (_growing(runs, plans) for plans in (False, True))
    setting = replace(_PLANNED, tp_size=2)
    rounds = [
        [step for step in runs.few_steps(setting, variant) if step.kind is RoundKind.SHORT]
        for variant in (REWARD, PARALLELISM)
    ]
    without, with_planner = (sum(step.num_preemptions for step in steps) for steps in rounds)
    speedups = [before.rollout_s / after.rollout_s for before, after in zip(*rounds, strict=True)]
    return {
        "6.4/dynamic": fmean(before / after for before, after in zip(fixed, planned, strict=True)),
        "6.4/preemptions": 100 * (1 - with_planner / without) if without else 0.0,
        "6.4/short": span(speedups),
    }


def _growing(runs: _Runs, plans: bool) -> list[float]:
    """Return rollout times while the limit grows from step to step; the engine must hold the longest from the start."""
    limits = range(_SHORTEST, _PLANNED.max_tokens + 1, _LENGTH_STEP)
    by_step = tuple(runs.constants.lengths(limit, seed=0) for limit in limits)
    lengths = _GrowingLengths(by_step, runs.shape.num_prompts)
    job = rollpacker.job(
        runs.constants,
        _PLANNED,
        replace(VERL, plans_parallelism=plans),
        Task.MATHS,
        0,
        shape=runs.shape,
        lengths=lengths,
    )
    job = replace(job, num_prompts=len(limits) * runs.shape.num_prompts)
    return [step.rollout_s for step in simulate(job, len(limits), keeps_spans=False).steps]


class _GrowingLengths:
    """Every step of a synchronous job has its own lengths; the cursor's order says which draw is in which step."""

    def __init__(self, by_step: tuple[LengthModel, ...], prompts_per_step: int) -> None:
        num_prompts = len(by_step) * prompts_per_step
        order = DrawCursor(num_prompts, seed=0).take(num_prompts)
        self._of = {draw.index: by_step[place // prompts_per_step] for place, draw in enumerate(order)}
        self.max_tokens = max(lengths.max_tokens for lengths in by_step)

    def response_tokens(self, response: ResponseId) -> int:
        return self._of[response.draw.index].response_tokens(response)

    def episode(self, response: ResponseId) -> None:
        return None

    def prompt_tokens(self, draw: Draw) -> int:
        return self._of[draw.index].prompt_tokens(draw)

    def hardness(self, draw: Draw) -> float:
        return self._of[draw.index].hardness(draw)


def _rewards(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 6.5."""
    predicted: dict[str, Prediction] = {
        f"6.5/asynchronous/{model}": runs.step_s(setting, TAIL_BATCHING) / runs.step_s(setting, ASYNCHRONOUS)
        for model, setting in SETTINGS.items()
    }

    num_prompts = runs.shape.num_prompts * _CODE_PROMPTS // SHAPE.num_prompts
    of_code = replace(runs, shape=BatchShape(num_prompts, runs.shape.num_responses))
    fixed, adaptive = (of_code.few_steps(SETTINGS["7B"], variant, Task.CODE) for variant in (ASYNCHRONOUS, REWARD))
    ratios = [_until_scored_s(before) / _until_scored_s(after) for before, after in zip(fixed, adaptive, strict=True)]
    return predicted | {"6.5/timeout": fmean(ratios)}


def _until_scored_s(step: StepRecord) -> float:
    return step.rollout_s + step.reward_wait_s


def _stream_trainer(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 6.6: steps of long rounds."""

    def long_s(variant: ExperimentVariant) -> float:
        steps = runs.steps(SETTINGS["7B"], variant, Task.MATHS)
        return _mean(steps, lambda step: step.step_s, RoundKind.LONG)

    none_s, streamed = long_s(ASYNCHRONOUS), replace(ASYNCHRONOUS, streams=True)
    times_s = {"none": none_s, "adaptive": long_s(streamed)}
    times_s |= {str(share): long_s(replace(streamed, scale_down_at=share / 100)) for share in (20, 30, 40)}
    predicted: dict[str, Prediction] = {f"table3/{name}/step": time_s for name, time_s in times_s.items()}
    predicted |= {f"table3/{name}/speedup": none_s / time_s for name, time_s in times_s.items()}
    predicted["table4/stream/step"] = times_s["adaptive"]
    once_s = {share: long_s(replace(streamed, fetched_once_share=share / 100)) for share in (20, 30, 40, 50)}
    for share, time_s in once_s.items():
        predicted |= {f"table4/{share}/step": time_s, f"table4/{share}/speed": times_s["adaptive"] / time_s}
    predicted["6.6/asynchronous"] = 100 * (1 - times_s["adaptive"] / max(once_s.values()))
    return predicted


def _scalability(runs: _Runs) -> dict[str, Prediction]:
    """Predict section 6.7: the batch grows with the GPUs."""
    rates: dict[tuple[int, ExperimentVariant], float] = {}
    for times in (1, 2, 4):
        setting = replace(SETTINGS["14B"], num_gpus=32 * times)
        for variant in (VERL, ROLLPACKER):
            steps = runs.few_steps(setting, variant, batches=times)
            samples = sum(step.num_trained_samples for step in steps)
            rates[setting.num_gpus, variant] = samples / math.fsum(step.step_s for step in steps)
    predicted: dict[str, Prediction] = {
        f"6.7/verl/{gpus}": rates[gpus, ROLLPACKER] / rates[gpus, VERL] for gpus in (32, 64, 128)
    }
    for gpus in (64, 128):
        predicted[f"6.7/doubling/{gpus}"] = rates[gpus, ROLLPACKER] / rates[gpus // 2, ROLLPACKER]
    return predicted
