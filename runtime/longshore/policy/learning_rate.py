"""The learning rate of every optimizer step: a pure function of its number.

The number is saved with the optimizer, so the rate of a job that continues is the one that it would have had.
"""

import math
from dataclasses import dataclass

from longshore.api.algorithm import LearningRateSchedule


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


def _share(schedule: LearningRateSchedule, progress: float) -> float:
    match schedule:
        case LearningRateSchedule.CONSTANT:
            return 1.0
        case LearningRateSchedule.LINEAR:
            return 1.0 - progress
        case LearningRateSchedule.COSINE:
            return 0.5 * (1.0 + math.cos(math.pi * progress))
