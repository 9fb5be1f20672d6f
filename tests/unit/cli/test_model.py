"""How an RLJob is read."""

import pytest

from longshore.api.status import Phase
from longshore_client.view import event_view, job_view, newest_events, problems, verdict
from tests.unit.cli.samples import at_step, condition, rljob


def test_a_job_that_the_operator_has_not_seen_is_pending() -> None:
    view = job_view({"metadata": {"name": "new"}, "spec": {"algorithm": {"steps": 7}}})
    assert (view.phase, view.steps, view.is_finished) == (Phase.PENDING, 7, False)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    job = rljob({**at_step(2), "novelty": {"a": 1}}, novelty=True)
    assert job_view(job).runtime.step == 2


def test_what_is_not_well_is_a_problem() -> None:
    view = job_view(rljob(conditions=(
        condition("Scheduled", "False", "Unschedulable"), condition("Ready", "False"), condition("Complete", "False"),
        condition("Failed", "False"), condition("Repurposed", "True"), condition("RepurposeUnavailable", "True"),
    )))  # fmt: skip
    assert [item.type for item in problems(view)] == ["Scheduled", "Ready", "RepurposeUnavailable"]


def test_waiting_for_admission_is_a_problem_and_being_admitted_is_none() -> None:
    waiting = job_view(rljob(phase="Queued", conditions=(condition("Admitted", "False", "QuotaPending"),)))
    assert [item.reason for item in problems(waiting)] == ["QuotaPending"]
    assert problems(job_view(rljob(conditions=(condition("Admitted", "True", "Admitted"),)))) == ()


@pytest.mark.parametrize("phase", ["Pending", "Starting"])
def test_pods_that_a_job_waits_for_in_its_beginning_are_no_problem(phase: str) -> None:
    begins = rljob(phase=phase, conditions=(
        condition("Scheduled", "False", "WaitingForPods", "0 of 3 pods have a node"),
        condition("Ready", "False", "PodsNotReady", "0 of 3 pods are ready"),
    ))  # fmt: skip
    assert problems(job_view(begins)) == ()


def test_the_reason_of_a_queued_job_is_shown_once() -> None:
    conditions = (condition("Admitted", "False", "QuotaPending"), condition("Ready", "False", "Queued"))
    assert [item.type for item in problems(job_view(rljob(phase="Queued", conditions=conditions)))] == ["Admitted"]


@pytest.mark.parametrize(
    ("phase", "reason"),
    [("Starting", "ImagePullBackOff"), ("Pending", "StorageNotFound"), ("Restarting", "PodsNotReady")],
)
def test_an_obstacle_in_the_beginning_and_pods_missing_later_are_problems(phase: str, reason: str) -> None:
    job = rljob(phase=phase, conditions=(condition("Ready", "False", reason),))
    assert [item.reason for item in problems(job_view(job))] == [reason]


def test_the_verdict_is_the_sentence_of_the_deciding_condition() -> None:
    failed = rljob(phase="Failed", conditions=(
        condition("Ready", "False", "Stopped", "no pods"),
        condition("Failed", "True", "UserError", "data.path: no such file"),
    ))  # fmt: skip
    assert verdict(job_view(failed)) == "UserError: data.path: no such file"
    assert verdict(job_view(rljob(phase="Failed"))) == "no reason given"


def test_events_are_ordered_by_time_whatever_field_holds_it() -> None:
    old = event_view({"metadata": {"uid": "a"}, "reason": "A", "lastTimestamp": "2026-01-01T00:00:01Z"})
    new = event_view(
        {"metadata": {"uid": "b"}, "reason": "B", "eventTime": "2026-01-01T00:00:02.5Z", "message": "x\n y"}
    )
    assert new.message == "x y"
    assert [event.reason for event in newest_events([new, old], 5)] == ["A", "B"]
    assert newest_events([new, old], 1) == (new,)


def test_an_event_that_came_again_counts_by_its_last_time() -> None:
    event = {"metadata": {}, "eventTime": "2026-01-01T00:00:02.5Z", "lastTimestamp": "2026-01-01T00:05:00Z"}
    assert event_view(event).time == "2026-01-01T00:05:00Z"
