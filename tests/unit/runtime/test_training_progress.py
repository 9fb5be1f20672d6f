"""A job reports the progress of the training of a step and of the publication of weights.

The former counts responses that the trainers have computed, the latter engines that have the weights.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from longshore.api.rollout import Strategy
from longshore.api.runtime_status import Progress, ProgressUnit
from longshore_runtime.backends.trainer_protocol import Sample, TrainResult
from longshore_runtime.rollout.published import Delivered
from longshore_runtime.telemetry.recorder import Recorder
from longshore_runtime.trainer.group import PassResult
from longshore_runtime.trainer.step_progress import StepProgress
from tests.unit.runtime.scripted_loop import ALGORITHM, DECOUPLED, Engines, Outcome, Sent, Trainers, run

BATCH = ALGORITHM.prompts_per_step * ALGORITHM.responses_per_prompt
REPORTED = threading.Semaphore(0)
"""Released whenever a report has been made."""


def wait_until_reported() -> None:
    """The first report may have been under way already."""
    while REPORTED.acquire(blocking=False):
        pass
    assert all(REPORTED.acquire(timeout=60) for _ in range(2))


class Slow(Trainers):
    """Each call takes until the progress within it was reported, halfway and at its end."""

    dies_at: int | None = None
    """The first world is lost halfway through the pass after so many updates."""

    def _begin(self) -> None:
        super()._begin()
        each = self.meter.each

        def slow(samples: Sequence[Any], num_samples: int) -> Iterator[Any]:
            for place, sample in enumerate(each(samples, num_samples)):
                if place == len(samples) // 2:
                    wait_until_reported()
                    if self.dies_at == self._trainer.policy_version and not self.generation:
                        self._is_lost = True
                        self.answer()
                yield sample

        self.meter.each = slow  # type: ignore[method-assign]

    def _train(self, samples: Sequence[Sample], max_mismatch: float | None = None) -> TrainResult:
        try:
            return super()._train(samples, max_mismatch)
        finally:
            wait_until_reported()

    def log_probs(self, samples: Sequence[Sample]) -> PassResult:
        result = super().log_probs(samples)
        wait_until_reported()
        return result


@pytest.fixture(autouse=True)
def _reports_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Recorder.progress

    def reported(recorder: Recorder, *amount: Any) -> None:
        report(recorder, *amount)
        REPORTED.release()

    monkeypatch.setattr("longshore_runtime.step.round_training.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr("longshore_runtime.step.publication.PROGRESS_EVERY_S", 0.001)
    monkeypatch.setattr(Recorder, "progress", reported)


def reported_trainings(outcome: Outcome) -> list[list[Progress]]:
    """What was reported of each training, in order."""
    trainings: list[list[Progress]] = []
    for before, report in zip(outcome.reports, outcome.reports[1:], strict=False):
        if report.activity == "Train":
            if before.activity != "Train":
                trainings.append([])
            if report.progress is not None and report.progress != before.progress:
                trainings[-1].append(report.progress)
    return trainings


def counts(outcome: Outcome) -> list[list[int]]:
    return [[progress.done for progress in training] for training in reported_trainings(outcome)]


def test_the_responses_that_are_computed_are_counted_of_all_of_the_step() -> None:
    outcome = run(kinds=(Slow, Engines), strategy=Strategy.SYNCHRONOUS)
    assert len(outcome.ledger) >= ALGORITHM.steps
    assert {(one.unit, one.total) for training in reported_trainings(outcome) for one in training} == {
        (ProgressUnit.RESPONSES, BATCH)
    }
    for done in counts(outcome):
        assert done == sorted(done)
        assert {BATCH // 2, BATCH} <= set(done)


def test_every_epoch_and_the_old_log_probabilities_count() -> None:
    outcome = run(kinds=(Slow, Engines), algorithm=DECOUPLED, strategy=Strategy.SYNCHRONOUS)
    total = 3 * BATCH
    assert {one.total for training in reported_trainings(outcome) for one in training} == {total}
    for done in counts(outcome):
        assert done == sorted(done)
        assert {BATCH // 2, BATCH, BATCH + BATCH // 4, total} <= set(done)


def test_a_refused_round_and_its_repetition_are_counted_alike() -> None:
    outcome = run(kinds=(Slow, Engines), strategy=Strategy.SYNCHRONOUS, stale=lambda publication: publication == 2)
    assert len(outcome.notices) == 1
    assert len(counts(outcome)) == len(outcome.ledger) + 1
    for done in counts(outcome):
        assert done[0] <= BATCH // 2
        assert {BATCH // 2, BATCH} <= set(done)


def test_restarted_trainers_begin_the_step_again_and_repeated_steps_do_not_count() -> None:
    class Dying(Slow):
        dies_at = 3

    outcome = run(kinds=(Dying, Engines), strategy=Strategy.SYNCHRONOUS, every=2)
    *_, interrupted = counts(outcome)
    assert len(counts(outcome)) == 4
    again = interrupted.index(0, 1)
    assert BATCH // 2 in interrupted[:again]
    assert interrupted[again:] == sorted(interrupted[again:])
    assert {BATCH // 2, BATCH} <= set(interrupted[again:])


class Counted:
    """Trainers of which 20 samples were asked before the step."""

    def __init__(self) -> None:
        self.num_given, self.computed = 20, 12.5

    def num_computed(self) -> float:
        return self.computed


def test_of_a_step_only_whole_responses_count_and_none_of_earlier_steps() -> None:
    trainers = Counted()
    progress = StepProgress(trainers)
    assert progress.num_computed(8) == 0, "the step before is not over"
    trainers.computed = 23.9
    assert progress.num_computed(8) == 3
    trainers.computed = 29
    assert progress.num_computed(8) == 8, "someone else's samples"


class SlowEngines(Engines):
    """Two engines get the weights one after the other, each when it was reported how far they are."""

    def publish(self, weights: Sent) -> None:
        self.delivered = Delivered(2)
        wait_until_reported()
        self.delivered = Delivered(2, num_confirmed=1, num_bytes=2_500_000_000)
        wait_until_reported()
        self.delivered = None
        super().publish(weights)


def test_a_publication_says_how_many_engines_have_the_weights() -> None:
    outcome = run(kinds=(Trainers, SlowEngines), strategy=Strategy.SYNCHRONOUS)
    reported = [report.progress for report in outcome.reports if report.activity == "Publish" and report.progress]
    assert {progress.unit for progress in reported} == {ProgressUnit.ENGINES}
    assert {(progress.done, progress.total, progress.detail) for progress in reported} == {
        (0, 2, ""),
        (1, 2, "2.5 GB are loaded"),
    }
