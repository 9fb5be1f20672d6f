"""The one sentence that a simulation ends with: what to change in the manifest."""

from collections.abc import Sequence
from typing import Final

from longshore.api.rollout import OnPolicy
from longshore.api.spec import RLJobSpec
from longshore_cli import format as fmt
from longshore_cli.simulate.variants import Run, manifest_changes, total_gpus

_TIE: Final = 0.01
"""Step times that differ by less are alike."""


def advice(spec: RLJobSpec, runs: Sequence[Run]) -> str:
    """The way to the quickest strict strategy, on the manifest's GPUs or else on the first ones that were asked for."""
    own = total_gpus(spec)
    num_gpus = own if any(run.num_gpus == own for run in runs) else runs[0].num_gpus
    where = "" if num_gpus == own else f" on {num_gpus} GPUs"
    here = [run for run in runs if run.num_gpus == num_gpus]
    strict = [run for run in here if run.variant.on_policy is OnPolicy.STRICT]
    best = min(strict, key=_step_s)
    given = next((run for run in here if run.variant.is_given), None)
    if given in strict and _step_s(given) <= _step_s(best) * (1 + _TIE):
        kept = f"Keep spec.rollout.strategy: {given.variant.strategy}{where}"
        return f"{kept}: none of the strict strategies is clearly quicker."
    to_do = " and ".join(manifest_changes(spec.rollout, best.variant.spec.rollout))
    before = f" instead of {fmt.duration(_step_s(given))}" if given else ""
    return f"For the quickest strict strategy{where}, {to_do}: a step then takes {fmt.duration(_step_s(best))}{before}."


def _step_s(run: Run) -> float:
    return run.result.mean_step_s
