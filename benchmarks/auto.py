"""Strategy Auto alongside fixed presets, on the same real engines: jobs that go on in turns.

A turn is some steps of one side. Every side goes on where its last turn ended: with the draws that wait, the place in
the data, and what Auto has learned and chosen. Weights begin again in every turn, so that all sides train from the same
ones; lengths are given, so they do not depend on the weights. The first turns teach Auto and count for no side.

Auto searches between two steps here, and not during the next one, where two cores would be short of one. What a search
takes is a figure of its own. `ratios` are the times of a turn over those of `Auto` in the same turn: below 1, a fixed
preset is faster. `Auto/best` is the time of all counted turns over that of the best fixed side.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks.local_pods import run_pods
from benchmarks.period import Keep, Run, Step, running
from benchmarks.report import report, spreads
from benchmarks.workload import GivenLengths, Workload, loop_options
from longshore.api.runtime_status import ChosenFactors
from longshore.api.spec import RLJobSpec
from longshore.policy.auto import Auto
from longshore.policy.draws import DrawCursor
from longshore.policy.round_policy import BatchShape, RoundPolicy
from longshore.policy.strategies import round_policy
from longshore.sim.auto import AutoTuner, Question
from longshore.sim.search import SearchResult
from longshore_runtime.elastic.auto_factors import AutoFactors
from longshore_runtime.step.parts import Parts

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
AUTO: Final = "Auto"
FIGURES: Final = ("step_s", "rollout_s", "train_s", "decode_steps", "sampled_tokens")

Runs = Mapping[str, Sequence[Run]]


class Searched:
    """Search that is made at once, between two steps, where nothing is measured."""

    def __init__(self, question: Question) -> None:
        begun_s = time.monotonic()
        self._found = question.answer()
        self.took_s = time.monotonic() - begun_s

    def done(self) -> bool:
        """Return True: the search has ended."""
        return True

    def result(self) -> SearchResult:
        """Return what the search found."""
        return self._found

    def stop(self) -> None:
        """Do nothing: the search has ended."""


class KeepChoices(Keep):
    """Keeps the notices of Auto besides the figures of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []

    def factors(self, chosen: ChosenFactors) -> None:
        """Do nothing: every change is also a notice."""

    def alarms(self, raised: Any) -> None:
        """Do nothing: lengths and rewards are given, so nothing is learned."""

    def notice(self, reason: str, message: str) -> None:
        self.changes.append(message)


class Turn(GivenLengths):
    """Training loop for the steps of one side."""

    def go_on(self, policy: Mapping[str, Any]) -> None:
        """Go on from the initial weights, and from this state of the round policy."""
        self.restore()
        if self._parts.checkpoints.newest() is None:
            self.checkpoint()
        self._parts.policy.load_state(policy)
        self._state = self._state.with_policy(policy)


@dataclass
class Side:
    """A job, with the state that it takes from turn to turn."""

    spec: RLJobSpec
    policy: RoundPolicy
    auto: AutoFactors | None = None
    searches: list[Searched] = field(default_factory=list)

    @classmethod
    def of(cls, spec: RLJobSpec, num_prompts: int) -> "Side":
        """Return a side before its first turn."""
        algorithm = spec.algorithm
        shape = BatchShape(algorithm.prompts_per_step, algorithm.responses_per_prompt)
        policy = round_policy(spec.rollout, shape, DrawCursor(num_prompts, algorithm.seed))
        side = cls(spec, policy)
        if isinstance(policy, Auto):
            side.auto = AutoFactors(policy, AutoTuner(spec), side._search)
        return side

    def turn(self, workload: Workload, parts: Parts, num_steps: int) -> Run:
        """Make these steps.

        The first one after a change of sides is like the others, since weights are published before.
        """
        recorder, policy = KeepChoices(), self.policy.export_state()
        own = dataclasses.replace(parts, policy=self.policy, recorder=recorder, auto=self.auto)
        loop = Turn(loop_options(self.spec), own, workload.lengths)
        loop.go_on(policy)
        for _ in range(num_steps):
            loop.step(draining=False)
        return {
            **_means(recorder.steps),
            "changes": recorder.changes,
            "num_deferred": self.policy.num_deferred,
            "draws": [draw for step in recorder.steps for draw in step["draws"]],
        }

    def _search(self, question: Question) -> Searched:
        self.searches.append(Searched(question))
        return self.searches[-1]


def measure(workload: Workload, num_taught: int, num_turns: int, num_steps: int) -> None:
    """Take turns and report, in the coordinator pod."""
    with running(workload) as parts:
        sides = {name: Side.of(spec, len(parts.prompts.train)) for name, spec in workload.jobs.items()}
        runs = take_turns(workload, sides, parts, num_taught, num_turns, num_steps)
    searches_s = [one.took_s for one in sides[AUTO].searches]
    columns = {f"{name}/{key}": [run[key] for run in of] for name, of in runs.items() for key in FIGURES}
    if searches_s:  # A short run has none.
        columns["search_s"] = searches_s
    report(
        "auto",
        ratios(runs),
        {"taught": num_taught, "turns": num_turns, "steps": num_steps, "workload": f"benchmarks/{workload.path.name}"},
        [{"side": name, **run, "draws": len(run["draws"])} for name, of in runs.items() for run in of],
        figures=spreads(columns),
    )


def take_turns(
    workload: Workload, sides: Mapping[str, Side], parts: Parts, num_taught: int, num_turns: int, num_steps: int
) -> dict[str, list[Run]]:
    """Return the turns of each side; every turn begins with another side.

    `num_taught` turns come before those that count.
    """
    names = list(sides)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(-num_taught, num_turns):
        first = number % len(names) if number > -num_taught else 0
        for name in (*names[first:], *names[:first]):
            run = sides[name].turn(workload, parts, num_steps)
            print(f"turn {number}: {name} {run['step_s']:.3f} s, {run['changes']}", file=sys.stderr)
            if number >= 0:
                runs[name].append({"turn": number, **run})
    return runs


def ratios(runs: Runs) -> dict[str, list[float]]:
    """Return the step times of fixed sides over those of Auto, turn by turn, and of Auto's over the best of them."""
    fixed = {name: of for name, of in runs.items() if name != AUTO}
    best_s = min(fmean(run["step_s"] for run in of) for of in fixed.values())
    return {
        f"{name}/step_s": [run["step_s"] / own["step_s"] for run, own in zip(of, runs[AUTO], strict=True)]
        for name, of in fixed.items()
    } | {"Auto/best": [fmean(run["step_s"] for run in runs[AUTO]) / best_s]}


def _means(steps: Sequence[Step]) -> dict[str, float]:
    return {name: fmean(step[name] for step in steps) for name in FIGURES}


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--taught", type=int, default=2, help="turns that do not count")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=18, help="of a turn")
    return run_pods(
        "auto", parser, lambda given: measure(WORKLOAD, given.taught, given.turns, given.steps), WORKLOAD.spec
    )


if __name__ == "__main__":
    raise SystemExit(main())
