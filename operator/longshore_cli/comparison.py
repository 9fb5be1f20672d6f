"""What a strategy gains: the first steps of a job alongside the same steps with synchronous rollout."""

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Final

from rich.console import Console

from longshore.api import names
from longshore.api.rollout import Strategy
from longshore.api.spec import RLJobSpec
from longshore.api.status import Phase
from longshore.policy.strategies import usual_period
from longshore_cli import format as fmt
from longshore_cli.watch.follow import follow
from longshore_client import jobs
from longshore_client.frames import metrics_by_step
from longshore_client.kube import Kube
from longshore_client.transfer import copy as transfer
from longshore_client.view import verdict
from longshore_kube.resources import Json

MAX_STEPS: Final = 46
"""Nine periods of tail batching with its default factors, after the first step, in which both sides still warm up."""
_FIRST_COMPARED: Final = 2
_STEP_S: Final = "timing_s/step"
_DECODE_STEPS: Final = "round/num_steps"
_SUFFIX: Final = "-synchronous"
_KEPT: Final = ("engine",)
"""Settings of the rollout that do not belong to a strategy."""


@dataclass(frozen=True)
class Timing:
    """What a step took, or a usual one."""

    step_s: float
    num_decode_steps: float
    """Decode steps of the engine that ran longest."""


@dataclass(frozen=True)
class Comparison:
    """The same steps of both. What a step takes is the average of a period's steps, and that the median of all periods.

    A period has one long round. A moment in which the machine is busy with something else spoils one of them.
    """

    first_step: int
    last_step: int
    ours: Timing
    synchronous: Timing
    has_accelerator: bool = False
    """Whether engines have a GPU, rather than processors."""

    @property
    def note(self) -> str:
        """Caveat of the comparison on CPUs; empty where engines have a GPU."""
        if self.has_accelerator:
            return ""
        return "on CPUs every further response makes a decode step longer; GPUs hide that, so tails cost more there"

    @property
    def decode_steps(self) -> str:
        """The figure that does not depend on the machine and on what else runs there."""
        ours, theirs = self.ours.num_decode_steps, self.synchronous.num_decode_steps
        return f"{ours:.0f} per step, {theirs:.0f} with synchronous rollout: {theirs / ours:.2f} times as many"

    def __str__(self) -> str:
        ours, theirs = self.ours.step_s, self.synchronous.step_s
        return (
            f"{fmt.duration(ours)}, {fmt.duration(theirs)} with synchronous rollout: "
            f"a step is {theirs / ours:.2f} times as fast (steps {self.first_step} to {self.last_step} of both)"
        )


def synchronous(document: Json) -> Json | None:
    """Return the first steps of an RLJob with synchronous rollout; None: its rollout is synchronous already."""
    spec = copy.deepcopy(document["spec"])
    rollout = spec.get("rollout") or {}
    if rollout.get("strategy") == Strategy.SYNCHRONOUS:
        return None
    spec["rollout"] = {"strategy": str(Strategy.SYNCHRONOUS)} | {key: rollout[key] for key in _KEPT if key in rollout}
    spec["algorithm"] = spec["algorithm"] | {"steps": min(spec["algorithm"]["steps"], MAX_STEPS)}
    spec.pop("evaluation", None)
    spec["storage"].pop("output", None)  # Where the job itself has its checkpoints.
    kept = document["metadata"]["name"][: names.MAX_JOB_NAME_LENGTH - len(_SUFFIX)].rstrip("-.")
    metadata = document["metadata"] | {"name": kept + _SUFFIX}
    return document | {"metadata": metadata, "spec": spec}


def compare(kube: Kube, ours: Json, theirs: Json, console: Console, clock: Callable[[], float]) -> Comparison | None:
    """Run the synchronous job after ours, in the same place; None: it failed, and the console says so."""
    name = theirs["metadata"]["name"]
    if message := jobs.make_room(kube, name, otherwise="the comparison waits for it"):
        console.print(message)
    kube.apply(theirs)
    view = follow(kube, name, console, clock).view
    if view.phase is not Phase.SUCCEEDED:
        console.print(f"There is nothing to compare with: {verdict(view)}")
        return None
    spec = RLJobSpec.model_validate(ours["spec"])
    period = len(usual_period(spec.rollout, spec.algorithm.prompts_per_step))
    found = compared(_timings(kube, ours["metadata"]["name"]), _timings(kube, name), period)
    return replace(found, has_accelerator=spec.workers.has_accelerator) if found is not None else None


def compared(ours: Mapping[int, Timing], theirs: Mapping[int, Timing], period: int) -> Comparison | None:
    """Compare the steps that both have timed, but the first, in whole periods of so many; None: there are none."""
    steps = sorted(step for step in ours.keys() & theirs.keys() if step >= _FIRST_COMPARED)
    if not steps:
        return None
    periods = [steps[at : at + period] for at in range(0, len(steps) - period + 1, period)] or [steps]
    return Comparison(steps[0], periods[-1][-1], _usual(ours, periods), _usual(theirs, periods))


def _usual(side: Mapping[int, Timing], periods: Sequence[Sequence[int]]) -> Timing:
    return Timing(
        median(mean(side[step].step_s for step in steps) for steps in periods),
        mean(side[step].num_decode_steps for steps in periods for step in steps),
    )


def _timings(kube: Kube, job: str) -> dict[int, Timing]:
    path = f"{jobs.output_path(kube.job(job))}/metrics.jsonl"
    with tempfile.TemporaryDirectory(prefix="longshore-") as directory:
        target = Path(directory) / "metrics.jsonl"
        transfer.fetch(kube, jobs.claim_of(kube, job, None), path, target, force=False)
        rows = metrics_by_step(target)
    return {step: Timing(row[_STEP_S], row[_DECODE_STEPS]) for step, row in rows.items() if _STEP_S in row}
