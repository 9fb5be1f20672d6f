"""Compare all mechanisms with none, and with each left out in turn.

One mixed workload of mathematics, programs and answers that a judge grades runs on real engines, trainers and
sandboxes, alternating in one run.

- AllOff: synchronous rounds; scoring begins when the rollout has ended; time limits of programs are fixed.
- AllOn: tail batching, rewards during the rollout, and limits that follow what correct programs took.
- Without...: all but one of them.
- AllOnAndStreaming: gradients of complete groups while the round runs as well, and pods that go to training where the
  benefit gate expects a gain.

An alternation is a period of each: as many rounds, from the same weights and the same place in the data, in which all
train the same draws. Each begins with another side. `ratios` are over `AllOn` in the same alternation: above 1, the
step takes longer. Responses have given lengths, and stand for programs of which one in twenty hangs, as in
`make bench NAME=rewards`; the judge is a remote endpoint that takes a fixed time.

With `--decode-step-s`, engines have no model, and a decode step takes that time, whatever the batch: almost so on GPUs,
while it takes longer with every response on CPUs, where saved decode steps save little. All else is the same.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import yaml

from benchmarks.local_pods import in_coordinator, run_in_coordinator
from benchmarks.overlap import Known, logged_period, raw
from benchmarks.period import Run, Step, running
from benchmarks.process_tree import cpu_s
from benchmarks.report import others, ratios_to, report, spreads
from benchmarks.rewards import CASES, HeldBack, await_workers, pool_of
from benchmarks.slow_judge import slow_judge
from benchmarks.workload import Workload
from longshore.api.reward import RewardFunction
from longshore.api.rollout import EngineBackend
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.sandbox.linux import adopt_orphans
from longshore_runtime.settings import Settings
from longshore_runtime.step.parts import Parts

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
DOMAINS: Final = ("maths", "code", "taste")
NUM_PROMPTS: Final = 60
ROUNDS_PER_PERIOD: Final = 5
JUDGE_S: Final = 0.3
REFERENCE: Final = "AllOn"
FIGURES: Final = ("step_s", "rollout_s", "reward_s", "train_s", "cpu_s_per_step", "decode_steps", "sampled_tokens")

Runs = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Rewards:
    """Way in which a side scores."""

    during_rollout: bool = True
    adaptive_limits: bool = True

    def functions(self, functions: Sequence[RewardFunction]) -> list[RewardFunction]:
        """Return the functions of the workload, with or without adaptive limits."""
        return [
            one.model_copy(update={"code": one.code.model_copy(update={"adaptive_timeout": self.adaptive_limits})})
            for one in functions
        ]

    @property
    def pool(self) -> type[RewardPool]:
        """Class of the pool that scores."""
        return RewardPool if self.during_rollout else HeldBack


@dataclass
class Learned:
    """Knowledge of a side from earlier periods, as of a job that goes on."""

    of_rounds: Known = field(default_factory=Known)
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Time limits of programs, by reward function."""


REWARDS: Final[Mapping[str, Rewards]] = {
    "AllOff": Rewards(during_rollout=False, adaptive_limits=False),
    "AllOn": Rewards(),
    "WithoutTailBatching": Rewards(),
    "WithoutAsynchronousRewards": Rewards(during_rollout=False),
    "WithoutAdaptiveLimits": Rewards(adaptive_limits=False),
    "AllOnAndStreaming": Rewards(),
}


def measure(workload: Workload, num_alternations: int, sides: Sequence[str], decode_step_s: float | None) -> None:
    """Run the alternations and report, in the coordinator pod."""
    runs = alternations(workload, sides, num_alternations)
    settings = {
        "alternations": num_alternations,
        "rounds": ROUNDS_PER_PERIOD,
        "workload": f"benchmarks/{WORKLOAD.path.name}",
        "judge_s": JUDGE_S,
        "decode_step_s": decode_step_s,
    }
    name = "everything" if decode_step_s is None else "everything_steps"
    columns = {f"{name}/{key}": [one[key] for one in of] for name, of in runs.items() for key in FIGURES}
    ratios = ratios_to(others(runs, REFERENCE), runs, ("step_s", "cpu_s_per_step"))
    report(name, ratios, settings, raw(runs), figures=spreads(columns))


def alternations(workload: Workload, sides: Sequence[str], num: int, *, warms_up: bool = True) -> Runs:
    """Return the periods of each side.

    One alternation before them warms up, and teaches lengths and limits.
    """
    write_rows(Settings.from_env().storage / "mixed.jsonl")
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    with running(workload) as parts:
        await_workers(parts.rewards, parts)
        known = {name: Learned() for name in sides}
        for number in range(-1 if warms_up else 0, num):
            first = number % len(sides)
            for name in (*sides[first:], *sides[:first]):
                found = run(name, workload, parts, known[name])
                if number >= 0:
                    runs[name].append({"alternation": number, "side": name, **found})
    require_equal_work(runs)
    return runs


@contextmanager
def judged(workload: Workload, decode_step_s: float | None = None) -> Iterator[Workload]:
    """Yield the workload with a judge that answers: before its pods start, since they read where it is.

    `decode_step_s`: of engines without a model; None: vLLM.
    """
    with slow_judge(JUDGE_S) as address, tempfile.TemporaryDirectory(prefix="ls-") as directory:
        resolved = Path(directory) / workload.path.name
        text = workload.path.read_text(encoding="utf-8").replace("http://judge.invalid/v1", address)
        resolved.write_text(text if decode_step_s is None else with_fixed_steps(text, decode_step_s), encoding="utf-8")
        yield Workload(resolved)


def with_fixed_steps(text: str, decode_step_s: float) -> str:
    """Return a workload whose engines end responses at given lengths, after as many steps of `decode_step_s`."""
    document = yaml.safe_load(text)
    engine = document["spec"]["rollout"]["engine"]
    endless = {"median_tokens": 1e9, "sigma": 0.0, "step_s": decode_step_s}
    document["spec"]["rollout"]["engine"] = {
        "backend": EngineBackend.FAKE.value,
        "maxNumSeqs": engine["maxNumSeqs"],
        "extraArgs": endless,
    }
    return yaml.safe_dump(document, sort_keys=False)


def write_rows(path: Path) -> None:
    """Write the rows of the workload, a third of them in each domain."""
    rows = [
        {"prompt": f"square {number}", "answer": str(number * number), "domain": domain, "tests": CASES}
        for number, domain in enumerate(DOMAINS * (NUM_PROMPTS // len(DOMAINS)))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(side: str, workload: Workload, parts: Parts, learned: Learned) -> Run:
    """Run one period."""
    spec, rewards = workload.jobs[side], REWARDS[side]
    functions = rewards.functions(spec.reward.functions)
    with pool_of(rewards.pool, spec, functions, parts) as pool:
        pool.load_state(learned.limits)
        begun_cpu_s = cpu_s(os.getppid())
        own = dataclasses.replace(parts, rewards=pool)
        steps = logged_period(spec, own, workload.lengths, ROUNDS_PER_PERIOD, learned.of_rounds)
        spent_cpu_s = cpu_s(os.getppid()) - begun_cpu_s
        learned.limits = pool.export_state()
    return {**totals(steps), "cpu_s_per_step": spent_cpu_s / len(steps), "steps": steps}


def totals(steps: Sequence[Step]) -> dict[str, float]:
    """Return means over the steps of a period."""
    return {name: fmean(step[name] for step in steps) for name in FIGURES if name in steps[0]}


def require_equal_work(runs: Runs) -> None:
    """Assert that all sides have trained the same draws in every period."""
    trained = {
        tuple(sorted(draw for step in one["steps"] for draw in step["draws"])) for of in runs.values() for one in of
    }
    assert len(trained) == 1, "unequal work"


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=list(REWARDS), default=list(REWARDS))
    parser.add_argument("--decode-step-s", type=float, help="of engines without a model; unset: vLLM decodes")
    parser.add_argument("--workload", type=Path, default=WORKLOAD.path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if in_coordinator():
        measure(
            Workload(given.workload),
            given.alternations,
            [REFERENCE, *(side for side in given.sides if side != REFERENCE)],
            given.decode_step_s,
        )
        return 0
    adopt_orphans()
    with judged(WORKLOAD, given.decode_step_s) as workload:
        arguments = [*sys.argv[1:], "--workload", str(workload.path)]
        return run_in_coordinator("benchmarks.everything", arguments, workload.spec)


if __name__ == "__main__":
    raise SystemExit(main())
