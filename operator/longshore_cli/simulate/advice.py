"""The one sentence that a simulation ends with: what to change in the manifest."""

from collections.abc import Sequence
from typing import Final

from longshore.api.rollout import OnPolicy, Strategy
from longshore.api.spec import RLJobSpec
from longshore.sim.result import SimResult
from longshore_cli import format as fmt
from longshore_cli.simulate.variants import SimulatedVariant, manifest_changes, total_gpus

_TIE: Final = 0.01
"""Speedups that differ by less are alike."""


def advice(spec: RLJobSpec, runs: Sequence[SimulatedVariant]) -> str:
    """Return the way to the quickest strict strategy, on the manifest's GPUs or else on the first that were asked for.

    A strategy is as quick as the worse of two comparisons says: at equal steps, and at equal trained tokens. One that
    trains on the shorter responses makes quicker steps, and learns less in them.
    """
    own = total_gpus(spec)
    num_gpus = own if any(run.num_gpus == own for run in runs) else runs[0].num_gpus
    where = "" if num_gpus == own else f" on {num_gpus} GPUs"
    here = [run for run in runs if run.num_gpus == num_gpus]
    baseline = next(run.result for run in here if run.variant.strategy is Strategy.SYNCHRONOUS)
    strict = [run for run in here if run.variant.on_policy is OnPolicy.STRICT]
    best = max(strict, key=lambda run: _speedup(run, baseline))
    given = next((run for run in here if run.variant.is_given), None)
    if given in strict and _speedup(best, baseline) <= _speedup(given, baseline) * (1 + _TIE):
        kept = f"Keep spec.rollout.strategy: {given.variant.strategy}{where}"
        return f"{kept}: none of the strict strategies is clearly quicker, at equal steps and at equal trained tokens."
    to_do = " and ".join(manifest_changes(spec.rollout, best.variant.spec.rollout))
    before = "" if given is None else f" instead of {fmt.duration(given.result.mean_step_s)}"
    step = f"a step then takes {fmt.duration(best.result.mean_step_s)}{before}"
    rate = f"{best.result.tokens_per_s / baseline.tokens_per_s:.2f} times as many tokens per second as with Synchronous"
    return f"For the quickest strict strategy{where}, {to_do}: {step}, and it trains {rate}."


def _speedup(run: SimulatedVariant, baseline: SimResult) -> float:
    result = run.result
    return min(baseline.mean_step_s / result.mean_step_s, result.tokens_per_s / baseline.tokens_per_s)
