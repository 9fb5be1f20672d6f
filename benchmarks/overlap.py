"""Run periods of training that say when the trainers computed what, and how much of it while the round still ran."""

import math
import queue
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry

from benchmarks.local_operator import ATTEMPT, LocalOperator
from benchmarks.period import Step, figures_of, policy_of, take_steps
from benchmarks.workload import GivenLengths, ResponseTokens, loop_options
from longshore.api.round_status import RepurposingBenefit, RolloutLoad, RoundKind
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.spec import RLJobSpec
from longshore.api.status import Assignment
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress
from longshore_runtime.backends.sums import GradientSums
from longshore_runtime.backends.trainer_protocol import Sample
from longshore_runtime.checkpoints.run_state import RunState
from longshore_runtime.clock import Clock
from longshore_runtime.rollout.round_runner import RoundRequests
from longshore_runtime.step.parts import Parts
from longshore_runtime.telemetry.journal import Journal
from longshore_runtime.telemetry.metrics import MetricsWriter
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.telemetry.step_done import StepDone
from longshore_runtime.trainer.group import PendingUpdate, TrainerGroup, shares


@dataclass
class Known:
    """Knowledge that a job has of its rounds, from one period to the next."""

    lengths: defaultdict[RoundKind, LengthDistribution] = field(default_factory=lambda: defaultdict(LengthDistribution))
    gate: Mapping[str, Any] | None = None
    """State of the benefit gate; None: nothing is known, or there is none."""


_LATE_S: Final = 60.0
"""Time limit for the last callbacks of an update to arrive, all of whose gradients are there."""


@dataclass(frozen=True)
class Pass:
    """Gradients that one replica computed in one go; times from the begin of the step."""

    replica: int
    num_tokens: int
    given_s: float
    begun_s: float
    done_s: float

    def share_before(self, moment_s: float) -> float:
        """Return the share of the pass that was done at a moment of the step."""
        took_s = max(self.done_s - self.begun_s, 1e-9)
        return min(1.0, max(0.0, (moment_s - self.begun_s) / took_s))


class StepLog:
    """Log of what happened in the step that runs, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._news: queue.SimpleQueue[Pass] = queue.SimpleQueue()
        self.begin()

    def begin(self) -> None:
        """Begin the log of a step."""
        self._begun_s = self._clock.now_s()
        self._num_passes = 0
        self._events: list[tuple[float, str]] = []
        self.rollout_begun_s = 0.0

    def now_s(self) -> float:
        """Return the seconds since the step began."""
        return self._clock.now_s() - self._begun_s

    def note(self, event: str) -> None:
        """Note an event that happens now."""
        self.note_at(self.now_s(), event)

    def note_at(self, moment_s: float, event: str) -> None:
        """Note an event that happened at a moment of the step."""
        self._events.append((moment_s, event))

    def passed(self, replica: int, samples: Sequence[Sample], answer: "Future[tuple[GradientSums, float]]") -> None:
        """Note that a replica is given samples; `answer` comes when it has their gradients."""
        self._num_passes += 1
        given_s = self.now_s()
        num_tokens = sum(sample.num_tokens for sample in samples)

        def done(future: "Future[tuple[GradientSums, float]]") -> None:
            done_s = self.now_s()
            if future.exception() is None:  # What failed shows when the update is finished.
                self._news.put(Pass(replica, num_tokens, given_s, done_s - future.result()[1], done_s))

        answer.add_done_callback(done)

    def passes(self) -> list[Pass]:
        """Return all passes of a step that is over, in the order in which they ended."""
        found = [self._news.get(timeout=_LATE_S) for _ in range(self._num_passes)]
        self._num_passes = 0
        return sorted(found, key=lambda one: one.done_s)

    def events(self) -> list[tuple[float, str]]:
        """Return the events, in their order."""
        return sorted((round(moment_s, 4), event) for moment_s, event in self._events)


class WatchedTrainers:
    """The trainers of a job, with a log of whatever they are given."""

    def __init__(self, trainers: TrainerGroup, log: StepLog) -> None:
        self._trainers = trainers
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainers, name)

    def add(self, update: PendingUpdate, samples: Sequence[Sample]) -> None:
        """Add samples as the group does."""
        for replica, part in enumerate(shares(samples, self._trainers.num_replicas)):
            if part:
                self.give(update, replica, part)

    def give(self, update: PendingUpdate, replica: int, samples: Sequence[Sample]) -> Any:
        """Give samples to a replica as the group does."""
        answer = self._trainers.give(update, replica, samples)
        self._log.passed(replica, samples, answer.future())
        return answer


class LoggingRecorder(Recorder):
    """Recorder that tells the operator what a coordinator tells, and keeps the figures of every step."""

    def __init__(self, output: Path, operator: LocalOperator, log: StepLog) -> None:
        self._own = MetricsWriter(output, CollectorRegistry())
        super().__init__(self._own, Journal(output / "ledger.jsonl"), operator, RuntimeStatus(attempt=ATTEMPT))
        self._log = log
        self.steps: list[Step] = []

    def milestone(self, progress: RoundProgress, load: RolloutLoad, benefit: RepurposingBenefit | None = None) -> None:
        self._log.note(f"telemetry at {progress.fraction_finished:.0%}")
        super().milestone(progress, load, benefit)

    def applied(self, epoch: int, trainer_pods: tuple[int, ...]) -> None:
        if trainer_pods:
            self._log.note(f"replicas of pods {', '.join(map(str, trainer_pods))} awake")
        super().applied(epoch, trainer_pods)

    def rejected(self, epoch: int, reason: str, refused_tp_size: int = 0) -> None:
        self._log.note(f"refused: {reason}")
        super().rejected(epoch, reason, refused_tp_size)

    def step(self, state: RunState, done: StepDone) -> None:
        super().step(state, done)
        times = done.times
        ended_s = self._log.rollout_begun_s + times.gen_s
        passes = self._log.passes()
        self._log.note_at(passes[0].done_s, "first gradients")
        self._log.note_at(ended_s, "rollout ends")
        self._log.note_at(times.step_s - times.publish_s, "update done")
        self._log.note_at(times.step_s, "weights published")
        self.steps.append(
            figures_of(done)
            | {
                "first_gradient_s": passes[0].done_s,
                "overlap_share": overlap_share(passes, ended_s),
                "dispatch_s": sorted({round(one.given_s, 4) for one in passes}),
                "events": self._log.events(),
            }
            | (asdict(done.repurposed) if done.repurposed else {})
        )

    def close(self) -> None:
        """Write no more."""
        self._own.close()


class LoggingLoop(GivenLengths):
    """The training loop, with responses of given lengths and a log of every step."""

    def __init__(self, spec: RLJobSpec, parts: Parts, lengths: ResponseTokens, log: StepLog, known: Known) -> None:
        """Begin a loop with what is `known` from earlier periods; this one adds to it."""
        super().__init__(loop_options(spec), parts, lengths)
        self._log = log
        self._known = known
        self._lengths.update(known.lengths)

    def restore(self) -> None:
        super().restore()
        if self._gate is not None and self._known.gate is not None:  # The checkpoint is older.
            self._gate.load_state(self._known.gate)

    def step(self, *, draining: bool) -> None:
        self._log.begin()
        super().step(draining=draining)
        self._known.lengths.update(self._lengths)
        self._known.gate = None if self._gate is None else self._gate.export_state()

    def _training_requests(self) -> RoundRequests:
        self._log.rollout_begun_s = self._log.now_s()
        self._log.note("rollout begins")
        return super()._training_requests()


def overlap_share(passes: Sequence[Pass], rollout_ended_s: float) -> float:
    """Return the share of the gradient work, by tokens, that was done when the rollout ended."""
    done = sum(one.num_tokens * one.share_before(rollout_ended_s) for one in passes)
    return done / sum(one.num_tokens for one in passes)


def logged_period(spec: RLJobSpec, parts: Parts, lengths: ResponseTokens, num_rounds: int, known: Known) -> list[Step]:
    """Make rounds from the same weights and place in the data; the last ones train whatever waits."""
    log = StepLog(parts.clock)

    def assigned(assignment: Assignment) -> None:
        log.note(f"assigned: {assignment.reason}")

    operator = LocalOperator(spec, parts.events, assigned)
    with tempfile.TemporaryDirectory() as output:
        recorder = LoggingRecorder(Path(output), operator, log)
        trainers = cast(TrainerGroup, WatchedTrainers(parts.trainers, log))
        own = replace(parts, policy=policy_of(spec, parts), trainers=trainers, recorder=recorder, assignments=operator)
        take_steps(LoggingLoop(spec, own, lengths, log, known), spec, own, num_rounds)
        recorder.close()
    return recorder.steps


def raw(runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what is kept of the runs: everything but which draws a step trained."""
    return [
        {**run, "steps": [{key: value for key, value in step.items() if key != "draws"} for step in run["steps"]]}
        for of in runs.values()
        for run in of
    ]


Totals = Callable[[Sequence[Step]], Mapping[str, float]]


class Alternations:
    """Periods of all jobs of a workload in turn; each alternation begins with another job."""

    def __init__(self, jobs: Mapping[str, RLJobSpec], parts: Parts, lengths: ResponseTokens, num_rounds: int) -> None:
        self._jobs = jobs
        self._parts = parts
        self._lengths = lengths
        self._num_rounds = num_rounds
        self._known = {name: Known() for name in jobs}

    def run(self, num_alternations: int, totals: Totals, limit_s: float = math.inf) -> dict[str, list[dict[str, Any]]]:
        """Return the periods of each job.

        One alternation before them warms up, and teaches the lengths. When all together take longer than the limit,
        fewer follow.
        """
        deadline_s = self._parts.clock.now_s() + limit_s
        self._alternate(0, totals)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in self._jobs}
        for number in range(num_alternations):
            for name, run in self._alternate(number, totals).items():
                runs[name].append(run)
            if self._parts.clock.now_s() > deadline_s:
                break
        return runs

    def _alternate(self, number: int, totals: Totals) -> dict[str, dict[str, Any]]:
        names = list(self._jobs)
        first = number % len(names)
        runs: dict[str, dict[str, Any]] = {}
        for name in names[first:] + names[:first]:
            steps = logged_period(self._jobs[name], self._parts, self._lengths, self._num_rounds, self._known[name])
            runs[name] = {"alternation": number, "job": name, **totals(steps), "steps": steps}
            step_s = fmean(step["step_s"] for step in steps)
            print(f"alternation {number}: {name} {step_s:.3f} s a step", file=sys.stderr)
        assert len({sum(step["samples"] for step in run["steps"]) for run in runs.values()}) == 1, "unequal work"
        return runs
