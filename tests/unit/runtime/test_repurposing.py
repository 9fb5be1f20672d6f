"""Pods go from rollout to training within a round: measured, decided elsewhere, carried out, acknowledged."""

import queue
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from longshore.api.rollout import Strategy
from longshore.api.round_status import RolloutLoad, RoundKind
from longshore.api.runtime_status import JobSize
from longshore.api.status import Assignment, Overlay
from longshore.policy.length_distribution import LengthDistribution
from longshore.policy.progress import RoundProgress
from longshore_runtime.backends.engine_protocol import EngineStats
from longshore_runtime.elastic.repurposing import Repurposing, RepurposingOptions
from longshore_runtime.errors import TrainerLost
from longshore_runtime.rollout.batch import RoundResult
from longshore_runtime.rollout.events import AssignmentChanged, Event, LoadMeasured, PodsRepurposed
from tests.unit.runtime.elastic_parts import AtOnce, Report
from tests.unit.runtime.scripted import Observer, ScriptedEngines, StillClock, build, runner

NUM_PROMPTS = 8
ROUND = 5


@dataclass
class Pool(ScriptedEngines):
    """One engine in each of two pods."""

    asleep: list[int] = field(default_factory=list)
    tp_size: int = 1

    def serving(self) -> list[int]:
        return [engine for engine in self.running if engine not in self.asleep]

    def stats(self) -> dict[int, EngineStats]:
        return {engine: EngineStats(kv_capacity_tokens=500) for engine in self.serving()}

    def engines_on(self, pods: Collection[int]) -> tuple[int, ...]:
        return tuple(engine for engine in self.serving() if engine in pods)

    def release(self, engines: Collection[int], timeout_s: float) -> None:
        assert not any(self.running[engine] for engine in engines), "only idle engines sleep"
        self.asleep += engines


@dataclass
class Trainers:
    """One replica in each pod."""

    num_replicas: int = 2
    awake: list[int] = field(default_factory=list)
    is_lost: bool = False

    def pods_of(self, replica: int) -> tuple[int, ...]:
        return (replica,)

    def replicas_on(self, pods: Collection[int]) -> tuple[int, ...]:
        return tuple(pods)

    def wake(self, replicas: Collection[int], timeout_s: float) -> None:
        if self.is_lost:
            raise TrainerLost("a trainer replica is gone (ActorDiedError)")
        self.awake += replicas


@dataclass
class Watched(Observer):
    """Hands everything on, and answers the telemetry as an operator would."""

    pool: Pool | None = None
    repurposing: Repurposing | None = None
    answers: "deque[Assignment]" = field(default_factory=deque)
    report: Report = field(default_factory=Report)
    _seen: int = 0

    def milestone(self, progress: RoundProgress) -> None:
        assert self.repurposing is not None
        self.repurposing.milestone(progress)

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        assert self.repurposing is not None and self.pool is not None
        self.repurposing.on_event(event)
        milestones = sum(reports[0] == "milestone" for reports in self.report.reports)
        if milestones > self._seen and self.answers:
            self.pool.put(AssignmentChanged(self.answers.popleft()))
        self._seen = milestones


@dataclass
class Story:
    """A round that is repurposed."""

    answers: tuple[Assignment, ...] = ()
    fixed_fraction: float | None = None
    answered_epoch: int = 0
    trainers: Trainers = field(default_factory=Trainers)
    work: AtOnce = field(default_factory=AtOnce)

    def __post_init__(self) -> None:
        self.pool = Pool()
        self.awake: list[int] = []
        self.watched = Watched(pool=self.pool, answers=deque(self.answers))
        events: queue.SimpleQueue[Event] = self.pool  # type: ignore[assignment]
        parts: Any = (self.pool, self.trainers)
        self.repurposing = Repurposing(
            RepurposingOptions(attempt=1, max_response_tokens=64, fixed_fraction=self.fixed_fraction),
            ROUND,
            *parts,
            defaultdict[RoundKind, LengthDistribution](LengthDistribution),
            self.watched.report,
            events,
            self.work,
            StillClock(),
            self.awake.extend,
            answered_epoch=self.answered_epoch,
        )
        self.watched.repurposing = self.repurposing

    def run(self) -> RoundResult:
        policy = build(Strategy.SYNCHRONOUS, num_prompts=NUM_PROMPTS)
        this_round = runner(self.pool, policy, observer=self.watched, milestones=self.repurposing.milestones)
        self.repurposing.begin(this_round)
        result = this_round.run(draining=False)
        self.repurposing.finish()
        return result

    @property
    def answered(self) -> list[tuple[Any, ...]]:
        """What was reported to the operator about its assignments."""
        return [reports for reports in self.watched.report.reports if reports[0] != "milestone"]

    @property
    def loads(self) -> list[tuple[float, RolloutLoad]]:
        """Fractions and loads of the milestones."""
        return [(reports[1], reports[2]) for reports in self.watched.report.reports if reports[0] == "milestone"]


def asks(epoch: int, *pods: int, round: int = ROUND, attempt: int = 1) -> Assignment:
    return Assignment(epoch=epoch, overlay=Overlay(round=round, attempt=attempt, trainer_pods=list(pods)), reason="so")


def test_milestones_report_what_the_engines_hold_and_will_hold() -> None:
    story = Story()
    story.run()
    fractions = [fraction for fraction, _ in story.loads]
    assert fractions == sorted(set(fractions))
    assert all(0.2 <= fraction <= 0.5 for fraction in fractions)
    first = story.loads[0][1]
    assert [(pod.pod, pod.gpus, pod.kv_capacity_tokens) for pod in first.pods] == [(0, 1, 500), (1, 1, 500)]
    running = sum(pod.running_tokens for pod in first.pods)
    assert 0 < running < first.projected_kv_peak_tokens


def test_an_assignment_is_carried_out_and_acknowledged_and_its_replicas_get_work() -> None:
    story = Story((asks(4, 1),))
    result = story.run()
    assert story.answered == [("applied", 4, (1,))]
    assert (story.pool.asleep, story.trainers.awake, story.awake) == ([1], [1], [1])
    assert result.num_moved > 0
    assert story.repurposing.times is not None
    assert story.repurposing.times.num_moved == result.num_moved
    assert story.repurposing.answered_epoch == 4


def test_a_measurement_that_comes_after_the_assignment_is_not_reported() -> None:
    story = Story((asks(4, 1),))
    story.run()
    reports = list(story.watched.report.reports)
    story.repurposing.on_event(LoadMeasured(story.repurposing, story.loads[0][1]))
    assert story.watched.report.reports == reports


def test_what_the_first_sampling_of_a_round_left_behind_does_not_reach_the_second() -> None:
    """A round that is refused is sampled again under the same number, and events of the first may still come."""
    refused = Story((asks(4, 1),))
    refused.run()
    next_round = Story(answered_epoch=refused.repurposing.answered_epoch)
    next_round.repurposing.on_event(LoadMeasured(refused.repurposing, refused.loads[0][1]))
    next_round.repurposing.on_event(PodsRepurposed(refused.repurposing, (1,), (1,)))
    assert (next_round.watched.report.reports, next_round.awake, next_round.repurposing.times) == ([], [], None)
    assert next_round.run().num_moved == 0


def test_a_fixed_fraction_is_one_milestone() -> None:
    story = Story(fixed_fraction=0.4)
    story.run()
    assert len(story.loads) == 1
    assert story.loads[0][0] >= 0.4


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        (asks(4, 1, round=4), "it is for round 4, and this is round 5"),
        (asks(4, 1, attempt=2), "it is for attempt 2, and this is attempt 1"),
        (asks(4, 0, 1), "no pod would be left to sample"),
        (asks(4, 7), "no engine samples in pods 7"),
    ],
)
def test_what_is_late_or_impossible_is_refused_and_the_round_uses_every_engine(
    assignment: Assignment, reason: str
) -> None:
    story = Story((assignment,))
    result = story.run()
    assert story.answered == [("rejected", 4, reason)]
    assert (story.pool.asleep, result.num_moved) == ([], 0)


def test_an_assignment_that_comes_twice_is_answered_once() -> None:
    story = Story((asks(4, 1), asks(4, 1)))
    story.run()
    assert story.answered == [("applied", 4, (1,))]


def test_an_assignment_that_was_answered_before_the_round_is_no_news() -> None:
    story = Story((asks(4, 1),), answered_epoch=4)
    story.run()
    assert story.answered == []


def test_a_second_overlay_in_a_round_is_refused() -> None:
    story = Story((asks(4, 1),))
    story.pool.script = deque([(12, AssignmentChanged(asks(5, 0)))])
    story.run()
    assert story.answered == [("applied", 4, (1,)), ("rejected", 5, "round 5 has repurposed pods 1 already")]


def test_an_overlay_that_comes_again_with_another_size_of_the_job_is_answered_once() -> None:
    story = Story((asks(4, 1),))
    again = asks(5, 1).model_copy(update={"size": JobSize(epoch=5, workers=1, held=2)})
    story.pool.script = deque([(12, AssignmentChanged(again))])
    story.run()
    assert [answer[0] for answer in story.answered] == ["applied"]
    assert story.repurposing.answered_epoch == 5


def test_an_assignment_without_overlay_waits_for_the_end_of_the_round() -> None:
    story = Story((Assignment(epoch=4),))
    story.run()
    assert (story.answered, story.repurposing.answered_epoch) == ([], 0)


def test_a_replica_that_does_not_wake_is_reported_and_gets_no_work() -> None:
    story = Story((asks(4, 1),), trainers=Trainers(is_lost=True))
    result = story.run()
    assert story.answered == [("rejected", 4, "a trainer replica is gone (ActorDiedError)")]
    assert story.awake == []
    assert len(result.groups) == NUM_PROMPTS


def test_a_repurposing_that_outlasts_the_round_is_awaited_and_starts_with_the_others() -> None:
    class Late(AtOnce):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            is_repurposing = fn.__name__ == "_carry_out"
            self._waits = is_repurposing
            future = super().submit(fn, *args, **kwargs)
            if is_repurposing:
                future.result = lambda: (self.work(), type(future).result(future))[1]  # type: ignore[method-assign]
            return future

    story = Story((asks(4, 1),), work=Late())
    story.run()
    assert story.answered == [("applied", 4, (1,))]
    assert (story.trainers.awake, story.awake) == ([1], [])
