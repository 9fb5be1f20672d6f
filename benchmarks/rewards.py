"""Compare scoring after the rollout with scoring during it, and fixed with adaptive time limits.

All score the same responses in the same real sandboxes on the same number of real workers, alternating in one run.

Responses stand for programs: most pass their test cases, some fail in one, and one in twenty hangs, as in RollPacker,
section 4.3, in its last case. Those that hang wait rather than compute, so that figures do not depend on how many CPUs
the machine has. The rollout is pretended: a decode step takes a fixed time.

- Synchronous: scoring begins when the rollout has ended. Only this benchmark can do that.
- Asynchronous: a response is scored when it has finished; time limits are fixed.
- Adaptive: the same, with time limits that follow what correct programs took.

Rounds are those of tail batching: short ones leave little time to hide scoring in. One alternation is a period of each
arm: every prompt twice, so that half of the adaptive limits begin without an anchor.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.local_pods import LocalPods, run_pods
from benchmarks.period import Keep, Run, Step, period, running
from benchmarks.report import report
from benchmarks.workload import Workload
from longshore.api.names import Component
from longshore.api.reward import RewardFunction
from longshore.api.spec import RLJobSpec
from longshore.policy.draws import Draw
from longshore.policy.round import ResponseId
from longshore_runtime.backends.engine_protocol import Completion
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.job_rewards import reward_pods, worker_groups
from longshore_runtime.rewards.events import CheckDue, WorkerReady
from longshore_runtime.rewards.pool import RewardPool
from longshore_runtime.rewards.scorers import ScorerFactory
from longshore_runtime.settings import Settings
from longshore_runtime.step.parts import Parts
from longshore_runtime.telemetry.step_done import StepDone

WORKLOAD: Final = Workload(Path(__file__).with_suffix(".yaml"))
NUM_PROMPTS: Final = 20
STEPS_PER_PERIOD: Final = 5
HANGING_SHARE: Final = 0.05
FAILING_SHARE: Final = 0.25

CASES: Final = [{"stdin": f"{number}\n", "stdout": f"{number * number}\n"} for number in range(1, 4)]
_PASSES: Final = "number = int(input())\nprint(sum(number for _ in range(number)))\n"
_FAILS: Final = "number = int(input())\nprint(number * 2)\n"
_HANGS: Final = f"import time\nnumber = int(input())\ntime.sleep(600 * (number == 3))\n{_PASSES.splitlines()[1]}\n"


class Programs(RewardPool):
    """Pool that reads any response as a program, equal ones alike."""

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """Offer the program for scoring."""
        super().finished(response, _as_program(completion))

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> None:
        """Score the programs of a group."""
        super().score(draw, {response: _as_program(one) for response, one in responses.items()})


def _as_program(completion: Completion) -> Completion:
    tokens = tuple(completion.trajectory.tokens.tolist())
    place = int.from_bytes(blake2b(repr(tokens).encode(), digest_size=6).digest(), "big") / 2**48
    if place < HANGING_SHARE:
        return completion.with_text(_HANGS)
    return completion.with_text(_FAILS if place < HANGING_SHARE + FAILING_SHARE else _PASSES)


class HeldBack(Programs):
    """Pool that scores nothing before the rollout has ended."""

    _held: dict[Draw, Mapping[ResponseId, Completion]] | None = None

    def finished(self, response: ResponseId, completion: Completion) -> None:
        """Begin to hold groups back: nothing is scored early."""
        if self._held is None:
            self._held = {}

    def score(self, draw: Draw, responses: Mapping[ResponseId, Completion]) -> None:
        """Keep the group until `forget` reports the end of the rollout."""
        if self._held is None:
            super().score(draw, responses)
        else:
            self._held[draw] = responses

    def forget(self, draws: Sequence[Draw]) -> None:
        """Score what was held back; the runner calls this once, when the rollout has ended."""
        super().forget(draws)
        held, self._held = self._held, None
        for draw, responses in (held or {}).items():
            super().score(draw, responses)


ARMS: Final[Mapping[str, tuple[type[Programs], bool]]] = {
    "Synchronous": (HeldBack, False),
    "Asynchronous": (Programs, False),
    "Adaptive": (Programs, True),
}


class KeepRewards(Keep):
    """Keeps figures of scoring besides those of every step."""

    def step(self, state: RunState, done: StepDone) -> None:
        super().step(state, done)
        result = done.result
        responses = [one for group in result.groups for one in group.responses]
        self.steps[-1] |= {
            "reward_wait_s": done.times.reward_s,
            "scoring_s": sum(result.rewards.seconds.values()),
            "timed_out": sum(one.timed_out for one in responses),
            "mean_reward": fmean(one.reward for one in responses),
            "max_queue_depth": result.rewards.max_depth,
        }


@contextmanager
def pool_of(
    kind: type[RewardPool], spec: RLJobSpec, functions: Sequence[RewardFunction], parts: Parts
) -> Iterator[RewardPool]:
    """Yield a pool with these functions, whose workers are those of a job, are ready and have learned nothing yet."""
    reward = spec.reward.model_copy(update={"functions": list(functions)})
    with ExitStack() as resources:
        pods = reward_pods(reward, partial(LocalPods().address_of, Component.REWARD))
        groups = worker_groups(reward, spec.workers, pods, resources)
        pool = kind(groups, ScorerFactory((), output=""), parts.events, parts.clock)
        resources.callback(pool.stop)
        await_workers(pool, parts)
        yield pool


def await_workers(pool: RewardPool, parts: Parts) -> None:
    """Take the events of workers that get ready, and drop late ones of the period before.

    The session's own pool, which scores nothing here, comes first: its events would count for another.
    """
    while not pool.is_complete:
        event = parts.events.get(timeout=120.0)
        if isinstance(event, WorkerReady | CheckDue):
            pool.handle(event)


def totals(steps: Sequence[Step]) -> dict[str, float]:
    """Return means over the steps of a period."""
    names = ("step_s", "rollout_s", "reward_wait_s", "scoring_s", "timed_out", "mean_reward")
    return {name: fmean(step[name] for step in steps) for name in names}


def measure(num_alternations: int) -> None:
    """Run the alternations and report, in the coordinator pod."""
    rows = [json.dumps({"prompt": f"square {n}", "answer": "", "tests": CASES}) for n in range(NUM_PROMPTS)]
    (Settings.from_env().storage / "programs.jsonl").write_text("\n".join(rows) + "\n")
    (function,) = WORKLOAD.spec.reward.functions
    runs: dict[str, list[Run]] = {name: [] for name in ARMS}
    with running(WORKLOAD) as parts:
        await_workers(parts.rewards, parts)
        for number in range(num_alternations):
            for name, (kind, is_adaptive) in ARMS.items():
                code = function.code.model_copy(update={"adaptive_timeout": is_adaptive})
                with pool_of(kind, WORKLOAD.spec, [function.model_copy(update={"code": code})], parts) as pool:
                    # Every prompt twice, from the same weights and the same place in the data.
                    scoring = dataclasses.replace(parts, rewards=pool)
                    steps = period(WORKLOAD.spec, scoring, WORKLOAD.lengths, STEPS_PER_PERIOD, KeepRewards())
                runs[name].append({"alternation": number, "arm": name, **totals(steps), "steps": steps})
    verdicts = {tuple(step["mean_reward"] for step in run["steps"]) for arm in runs.values() for run in arm}
    assert len(verdicts) == 1, "all arms must judge alike"
    _report(runs, num_alternations)


def _report(runs: Mapping[str, Sequence[Run]], num_alternations: int) -> None:
    synchronous, asynchronous, adaptive = (runs[name] for name in ARMS)
    pairs = {
        "asynchronous_step_speedup": (synchronous, asynchronous),
        "adaptive_step_speedup": (asynchronous, adaptive),
        "both_step_speedup": (synchronous, adaptive),
    }
    ratios = {
        name: [slow["step_s"] / fast["step_s"] for slow, fast in zip(*pair, strict=True)]
        for name, pair in pairs.items()
    }
    ratios["synchronous_reward_share"] = [run["reward_wait_s"] / run["step_s"] for run in synchronous]
    figures = {f"{name}_{figure}": [run[figure] for run in arm] for name, arm in runs.items() for figure in _FIGURES}
    settings = {
        "alternations": num_alternations,
        "workload": f"benchmarks/{WORKLOAD.path.name}",
        "hanging_share": HANGING_SHARE,
    }
    report("rewards", ratios, settings, [run for arm in runs.values() for run in arm], figures=figures)


_FIGURES: Final = ("step_s", "rollout_s", "reward_wait_s")


def main() -> int:
    """Start the pods, or, in the coordinator pod, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alternations", type=int, default=2)
    return run_pods("rewards", parser, lambda given: measure(given.alternations), WORKLOAD.spec)


if __name__ == "__main__":
    raise SystemExit(main())
