"""Mixes of two to eight jobs of RollPacker's settings (section 6) that share GPUs, alongside the same jobs that do not.

All are colocated and strictly on-policy, and their rewards are scored while the round runs. `TailBatching` shows what
is left to share where rounds have no tail. A job keeps a quarter of its GPUs for itself.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Final

from longshore.sim.job import SimJob
from longshore.sim.paper import rollpacker
from longshore.sim.paper.rollpacker import SETTINGS, ExperimentVariant, RollPackerConstants, Task
from longshore.sim.sharing_group import SharedJob, shared_job
from longshore.sim.sharing_mix import MixResult, alike, run_mix
from longshore.sim.simulate import simulate

OWN_SHARE: Final = 1 / 4
"""Of a job's GPUs, those that it does not share."""
_NUM_STEPS: Final = 10
"""After half as many, a period of tail batching, in which lengths become known."""
_SYNCHRONOUS: Final = replace(rollpacker.VERL, asynchronous_rewards=True)
_TAIL_BATCHING: Final = replace(rollpacker.ASYNCHRONOUS, response_factor=1.0, scores_decide_races=False)
_TASKS: Final = (Task.MATHS, Task.CODE, Task.JUDGE)
_FEWER: Final = (1 / 2, 1 / 4)
"""Shares of a job's GPUs that could do without sharing."""
_STATE_SHARE: Final = 1 / 2
"""Of a GPU's memory, what the state of the trainer may take: activations need the rest."""


@dataclass(frozen=True)
class Mix:
    """How many jobs of each setting, and how many times as long a step of each may become."""

    counts: Mapping[str, int]
    max_slowdown: float
    variant: ExperimentVariant = _SYNCHRONOUS
    size: float = 1.0
    """GPUs of each job, as a share of those of the paper."""

    @property
    def described(self) -> str:
        """As `4 × 7B, 2 × 14B`."""
        jobs = ", ".join(
            f"{count} × {model} on {round(self.size * SETTINGS[model].num_gpus)}"
            for model, count in self.counts.items()
        )
        return f"{jobs}, `{self.variant.strategy}`" if self.variant != _SYNCHRONOUS else jobs


_ALL_SIZES: Final = {"7B": 4, "14B": 2, "32B": 2}
MIXES: Final = (
    *(Mix({model: count}, 1.5) for model in SETTINGS for count in (2, 4, 8)),
    Mix({"7B": 2, "14B": 2}, 1.5),
    Mix(_ALL_SIZES, 1.2),
    Mix(_ALL_SIZES, 1.5),
    Mix(_ALL_SIZES, 2.0),
    Mix({"14B": 4}, 1.5, _TAIL_BATCHING),
    Mix({"14B": 4}, 1.5, size=1 / 4),
    Mix({"32B": 4}, 1.5, size=1 / 4),
)


@dataclass(frozen=True)
class MixRow:
    """A mix, shared and not."""

    mix: Mix
    result: MixResult
    fewer_gpus_gain: float
    """What the best of fewer GPUs for each job, within the same limit, would gain instead."""


def compare_mixes(
    constants: RollPackerConstants, mixes: Sequence[Mix] = MIXES, num_steps: int = _NUM_STEPS
) -> Iterator[MixRow]:
    """All of them; takes a few minutes."""
    kinds = _Kinds(constants, num_steps)
    for mix in mixes:
        jobs = [
            alike(kinds.shared(model, mix.variant, mix.size, number % len(_TASKS)), count)[number]
            for model, count in mix.counts.items()
            for number in range(count)
        ]
        num_gpus = sum(job.num_gpus for job in jobs)
        fewer = sum(count * kinds.fewest_gpus(model, mix) for model, count in mix.counts.items())
        yield MixRow(mix, run_mix(jobs, mix.max_slowdown), num_gpus / fewer)


class _Kinds:
    """Jobs that several mixes have."""

    def __init__(self, constants: RollPackerConstants, num_steps: int) -> None:
        self._constants = constants
        self._num_steps, self._num_warm_up_steps = num_steps, num_steps // 2
        self.shared = cache(self._shared)
        self._step_s = cache(self._mean_step_s)

    def fewest_gpus(self, model: str, mix: Mix) -> float:
        """GPUs of its own that a job of the first kind needs, times what its steps take longer; within its limit."""
        num_gpus = self._job(model, mix.variant, mix.size, 0).num_gpus
        alone_s = self._step_s(model, mix.variant, mix.size)
        steps_s = {share: self._step_s(model, mix.variant, share * mix.size) for share in (1.0, *_FEWER)}
        slowdowns = {share: step_s / alone_s for share, step_s in steps_s.items()}
        return num_gpus * min(share * one for share, one in slowdowns.items() if one <= mix.max_slowdown)

    def _shared(self, model: str, variant: ExperimentVariant, size: float, kind: int) -> SharedJob:
        job = self._job(model, variant, size, kind)
        sharing = replace(job, num_own_gpus=round(OWN_SHARE * job.num_gpus))
        return shared_job(model, sharing, self._num_steps, self._num_warm_up_steps)

    def _mean_step_s(self, model: str, variant: ExperimentVariant, size: float) -> float:
        """Infinite where the trainer does not fit its GPUs."""
        job = self._job(model, variant, size, 0)
        if job.trainer_costs.trainer_state_bytes(job.num_gpus) > _STATE_SHARE * job.gpus.gpu.memory_bytes:
            return math.inf
        steps = simulate(job, self._num_warm_up_steps + self._num_steps, keeps_spans=False).steps
        return fmean(step.step_s for step in steps[self._num_warm_up_steps :])

    def _job(self, model: str, variant: ExperimentVariant, size: float, kind: int) -> SimJob:
        """On a part of the GPUs of its setting, with all its reward workers; each kind has its own task and draws."""
        job = rollpacker.job(self._constants, SETTINGS[model], variant, _TASKS[kind], seed=kind)
        num_gpus = round(size * job.num_gpus)
        replica = min(job.trainer.gpus_per_replica, num_gpus)
        return replace(
            job, gpus=replace(job.gpus, num_gpus=num_gpus), trainer=replace(job.trainer, gpus_per_replica=replica)
        )
