"""Between rounds engines take the size that the newest assignment asks for, and every assignment is answered once."""

from dataclasses import dataclass, field

from longshore.api.round_status import RoundKind
from longshore.api.status import Assignment, Baseline, Overlay
from longshore_runtime.backends.engine_spec import EngineStartError
from longshore_runtime.elastic.regrouping import Regrouping
from tests.unit.runtime.elastic_parts import Known, Report


@dataclass
class Engines:
    tp_size: int = 1
    impossible: int = 0
    requested_sizes: list[int] = field(default_factory=list)

    def regroup(self, tp_size: int) -> None:
        self.requested_sizes.append(tp_size)
        if tp_size == self.impossible:
            raise EngineStartError("rollout.engine.tensorParallelSize: 4 does not divide the model's 2 heads")
        self.tp_size = tp_size


def assignment(epoch: int, tp_size: int = 1, overlay: Overlay | None = None, **sizes: int) -> Assignment:
    by_kind = {RoundKind(kind): size for kind, size in sizes.items()}
    return Assignment(epoch=epoch, baseline=Baseline(tp_size=tp_size, tp_sizes=by_kind), overlay=overlay)


def parts(first: Assignment, engines: Engines | None = None) -> tuple[Regrouping, Known, Engines, Report]:
    known, engines, report = Known(first), engines or Engines(), Report()
    return Regrouping(known, engines, report, attempt=1), known, engines, report  # type: ignore[arg-type]


def test_without_an_operator_the_engines_stay_as_they_are() -> None:
    baseline, _, engines, report = parts(Assignment())
    baseline.apply(RoundKind.LONG, 1)
    assert (engines.requested_sizes, report.reports) == ([], [])


def test_each_kind_of_round_has_its_size() -> None:
    baseline, _, engines, report = parts(assignment(3, Short=2))
    for number, kind in enumerate((RoundKind.SHORT, RoundKind.SHORT, RoundKind.LONG, RoundKind.SHORT), start=1):
        baseline.apply(kind, number)
    assert engines.requested_sizes == [2, 1, 2]
    assert report.reports[:2] == [("engines", 2), ("applied", 3, ())]


def test_a_size_that_cannot_start_is_refused_once_and_not_tried_again() -> None:
    baseline, known, engines, report = parts(assignment(2, tp_size=4), Engines(impossible=4))
    for number in range(1, 4):
        baseline.apply(RoundKind.FULL, number)
    assert engines.requested_sizes == [4]
    why = "rollout.engine.tensorParallelSize: 4 does not divide the model's 2 heads"
    assert report.reports == [("engines", 1), ("rejected", 2, why, 4)], "and never said to be applied"
    known.assignment = assignment(3, tp_size=2)
    baseline.apply(RoundKind.FULL, 4)
    assert engines.tp_size == 2


def test_an_overlay_that_came_after_its_round_is_refused_and_its_baseline_holds() -> None:
    late = Overlay(round=5, attempt=1, trainer_pods=[1])
    baseline, known, engines, report = parts(assignment(3))
    baseline.apply(RoundKind.FULL, 5)
    known.assignment = assignment(4, tp_size=2, overlay=late)
    baseline.apply(RoundKind.FULL, 6)
    assert engines.tp_size == 2
    assert ("rejected", 4, "it came when round 5 was over") in report.reports
    assert baseline.epoch == 4


def test_an_overlay_that_an_earlier_session_of_the_attempt_has_answered_is_no_news() -> None:
    """Trainers were lost, or the job has another size: rounds go on, in a new session."""
    answered = Overlay(round=5, attempt=1, trainer_pods=[1])
    baseline, known, _, report = parts(assignment(7, overlay=answered))
    baseline.apply(RoundKind.FULL, 6)
    known.assignment = assignment(8, overlay=answered)
    baseline.apply(RoundKind.FULL, 7)
    assert report.reports == [("applied", 7, ()), ("applied", 8, ())]


def test_an_overlay_of_an_earlier_attempt_is_dead_and_no_news() -> None:
    baseline, _, _, report = parts(assignment(4, overlay=Overlay(round=5, attempt=9, trainer_pods=[1])))
    baseline.apply(RoundKind.FULL, 6)
    assert report.reports == [("applied", 4, ())]


def test_what_a_round_has_answered_is_not_refused_afterwards() -> None:
    overlay = Overlay(round=5, attempt=1, trainer_pods=[1])
    baseline, _, _, report = parts(assignment(4, overlay=overlay))
    baseline.answered(4, overlay)
    baseline.apply(RoundKind.FULL, 6)
    assert report.reports == [("applied", 4, ())]


def test_an_answered_overlay_in_an_assignment_that_changes_the_job_size_is_no_news() -> None:
    """The operator keeps an overlay in the assignment until it knows that its round is over."""
    overlay = Overlay(round=5, attempt=1, trainer_pods=[1])
    baseline, known, _, report = parts(assignment(4, overlay=overlay))
    baseline.answered(4, overlay)
    known.assignment = assignment(5, overlay=overlay)
    baseline.apply(RoundKind.FULL, 6)
    baseline.answered(5, None)
    known.assignment = assignment(6, overlay=overlay)
    baseline.apply(RoundKind.FULL, 7)
    assert report.reports == [("applied", 5, ()), ("applied", 6, ())]
