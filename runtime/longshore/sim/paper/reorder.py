"""The reorder recipe's bound: every batch has one long-tail sample, and 100 batches are rolled out.

The recipe counts t_mean for a batch without its long sample and t_max for the one batch of all of them. Here batches
of 100 are sampled by engines whose step always takes the same time, so that only the policy is compared: t_mean and
t_max are lengths. Nothing is calibrated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from longshore.api.rollout import EngineSettings, OnFinish, ReorderRolloutSettings, Rollout, Strategy
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape
from longshore.sim.hardware import GPUS, MODELS
from longshore.sim.job import GpuPool, SimJob, TrainerLayout
from longshore.sim.lengths import TraceLengths
from longshore.sim.paper.calibration import Constant
from longshore.sim.paper.published import Baselines
from longshore.sim.profile import DecodePoint, Profile
from longshore.sim.simulate import simulate

_STEP_S: Final = 0.1
_NUM_RESPONSES: Final = 2
_NUM_ENGINES: Final = 4
"""The recipe's benchmark has 4 H20."""


@dataclass(frozen=True)
class ReorderConstants:
    """The recipe's own example."""

    t_max_s: float
    t_mean_s: float
    num_batches: int

    def listed(self) -> tuple[Constant, ...]:
        """Return no constants, because none is free."""
        return ()


def calibrate(baselines: Baselines) -> ReorderConstants:
    """Take the constants over as they are."""
    t_max_s, t_mean_s, count = (baselines[f"reorder/bound/{name}"] for name in ("t_max", "t_mean", "num_batches"))
    return ReorderConstants(t_max_s, t_mean_s, round(count))


def predict(constants: ReorderConstants) -> dict[str, float]:
    """Return totals of all batches."""
    count = constants.num_batches
    baseline_s = _total_s(constants, Strategy.SYNCHRONOUS)
    reorder_s = _total_s(constants, Strategy.REORDER_ROLLOUT)
    return {
        "reorder/bound/t_max": baseline_s / count,
        "reorder/bound/baseline": baseline_s,
        "reorder/bound/reorder": reorder_s,
        "reorder/bound/speedup": baseline_s / reorder_s,
    }


def _total_s(constants: ReorderConstants, strategy: Strategy) -> float:
    count = constants.num_batches
    # Engines hold a batch and every long sample that was put off, so that none takes the place of a short one.
    held = 2 * count * _NUM_RESPONSES // _NUM_ENGINES
    job = SimJob(
        rollout=Rollout(
            strategy=strategy,
            reorder_rollout=ReorderRolloutSettings(max_postponements=count),
            on_finish=OnFinish.LEAVE,
            engine=EngineSettings(max_num_seqs=held),
        ),
        shape=BatchShape(count, _NUM_RESPONSES),
        model=MODELS["Qwen2.5-7B"],
        gpus=GpuPool(GPUS["H20"], _NUM_ENGINES),
        lengths=TraceLengths(_lengths(constants)),
        trainer=TrainerLayout(num_extra_forwards=1),  # So does verl compute old log-probabilities.
        profile=Profile(
            decode=[DecodePoint(tp_size=1, num_running=1, context_tokens=tokens, step_s=_STEP_S) for tokens in (0, 9)],
            kv_capacity_tokens={1: 1 << 40},
            prefill_tokens_per_s=1e12,
        ),
        num_prompts=count * count,
    )
    return sum(step.rollout_s for step in simulate(job, count, keeps_spans=False).steps)


def _lengths(constants: ReorderConstants) -> Sequence[Sequence[int]]:
    """Return lengths by row: the cursor's order decides the batch of a row, and the first row of each is long."""
    count = constants.num_batches
    short, long = (round(time_s / _STEP_S) for time_s in (constants.t_mean_s, constants.t_max_s))
    tokens = [short] * count**2
    for draw in DrawCursor(count**2, seed=0).take(count**2)[::count]:
        tokens[draw.index] = long
    return [[each] * _NUM_RESPONSES for each in tokens]
