"""The learning rate of every optimizer step: a pure function of its number and of the signals of the newest steps.

Both are saved with the optimizer, so that it resumes with the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longshore.api.algorithm import LearningRateScaling, LearningRateSchedule
from longshore.policy.signal_scaling import signal_factor


@dataclass(frozen=True)
class ScheduleOptions:
    """Settings that determine the learning rate of a job."""

    learning_rate: float
    """Peak."""
    schedule: LearningRateSchedule
    warmup_steps: int
    num_steps: int
    """Optimizer steps of the job."""
    min_ratio: float
    """Share of the peak that is left at the end."""
    scaling: LearningRateScaling = LearningRateScaling.NEVER


def learning_rate(options: ScheduleOptions, step: int) -> float:
    """Return the learning rate of optimizer step `step`; the first step is 1.

    It rises linearly, has its peak at step `warmup_steps` (or the first), and falls from there towards `min_ratio`,
    which the step after the last has. Later steps, in which a job drains, keep that.
    """
    peak = max(1, options.warmup_steps)
    if step < peak:
        return options.learning_rate * step / peak
    progress = min(1.0, (step - peak) / max(1, options.num_steps - peak + 1))
    return options.learning_rate * (options.min_ratio + (1.0 - options.min_ratio) * _share(options.schedule, progress))


def scaled_learning_rate(options: ScheduleOptions, step: int, signals: Sequence[float]) -> float:
    """Return the learning rate of `step`; `signals`: its signal and those of earlier steps (see `signal_scaling`)."""
    rate = learning_rate(options, step)
    match options.scaling:
        case LearningRateScaling.NEVER:
            return rate
        case LearningRateScaling.BY_SIGNAL:
            return rate * signal_factor(signals)


def _share(schedule: LearningRateSchedule, progress: float) -> float:
    match schedule:
        case LearningRateSchedule.CONSTANT:
            return 1.0
        case LearningRateSchedule.LINEAR:
            return 1.0 - progress
        case LearningRateSchedule.COSINE:
            return 0.5 * (1.0 + math.cos(math.pi * progress))
