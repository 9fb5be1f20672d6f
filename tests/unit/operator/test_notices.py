"""Notices of the coordinator become events on the job: each once, even if the operator was away meanwhile."""

import pytest

from longshore.api.names import Component
from longshore.api.runtime_status import Alarm, Notice, RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.notices import newest_notice, notice_events
from longshore_operator.plan import Event
from tests.unit.operator.model import Cluster, running_cluster

NONE_REPORTED = (0, 0)


def runtime(*numbers: int, attempt: int = 1) -> RuntimeStatus:
    """What the coordinator tells that has lost engines."""
    notices = [Notice(number=number, reason="EngineLost", message=f"engine {number} was lost") for number in numbers]
    return RuntimeStatus(attempt=attempt, notices=notices)


def status(given: RuntimeStatus | None, phase: Phase = Phase.RUNNING, attempt: int = 1) -> RLJobStatus:
    return RLJobStatus(phase=phase, attempt=attempt, runtime=given)


def test_a_notice_becomes_a_warning_that_its_attempt_and_number_identify() -> None:
    assert notice_events(status(runtime(3, attempt=2), attempt=2), NONE_REPORTED) == (
        Event("Warning", "EngineLost", "engine 3 was lost", key="2-3"),
    )


def test_only_what_was_not_reported_is_reported() -> None:
    assert [event.key for event in notice_events(status(runtime(4, 5, 6)), (1, 4))] == ["1-5", "1-6"]
    assert notice_events(status(runtime(4, 5, 6)), (1, 6)) == ()


def test_those_of_an_attempt_that_is_over_are_no_news() -> None:
    assert notice_events(status(runtime(1), attempt=2), NONE_REPORTED) == ()


@pytest.mark.parametrize("phase", [Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED])
def test_a_job_whose_pods_are_stopped_loses_its_engines_without_events(phase: Phase) -> None:
    assert notice_events(status(runtime(1), phase), NONE_REPORTED) == ()


def test_a_coordinator_that_reports_nothing_makes_no_events() -> None:
    assert notice_events(status(None), NONE_REPORTED) == ()
    assert newest_notice(None) == newest_notice(RuntimeStatus(attempt=3)) == (0, 0)


def test_an_operator_reports_each_notice_once_and_catches_up() -> None:
    cluster = running_cluster()
    for given in (runtime(1), runtime(1), runtime(1, 2, 3)):
        cluster.report(given)
    assert keys(cluster) == ["1-1", "1-2", "1-3"]


def test_an_operator_that_forgot_what_it_reported_gives_the_event_the_same_name() -> None:
    cluster = running_cluster()
    cluster.report(runtime(1))
    cluster.reported_notice = NONE_REPORTED
    assert cluster.plan().actions == (cluster.events[-1],)


def keys(cluster: Cluster) -> list[str]:
    return [event.key for event in cluster.events if event.reason == "EngineLost"]


ZERO = Alarm(reason="RewardsAllZero", message="every reward is 0", step=3)
CUT = Alarm(reason="ResponsesAllCut", message="every response is cut", step=5)


def alarmed(*alarms: Alarm) -> RuntimeStatus:
    """What the coordinator tells while these alarms last."""
    return RuntimeStatus(attempt=1, alarms=list(alarms))


def alarm_condition(cluster: Cluster) -> tuple[str, str, str] | None:
    kinds = [condition.type for condition in cluster.status.conditions]
    return cluster.condition("TrainingAlarm") if "TrainingAlarm" in kinds else None


def test_alarms_are_a_condition_for_as_long_as_they_last() -> None:
    cluster = running_cluster()
    cluster.report(alarmed(ZERO))
    assert alarm_condition(cluster) == ("True", "RewardsAllZero", "since step 3: every reward is 0")
    begun = transition(cluster)
    cluster.pass_time(60)
    cluster.report(alarmed(ZERO, CUT))
    assert alarm_condition(cluster) == (
        "True", "RewardsAllZero", "since step 3: every reward is 0; since step 5: every response is cut"
    )  # fmt: skip
    assert transition(cluster) == begun
    cluster.report(alarmed())
    assert alarm_condition(cluster) == ("False", "Cleared", "nothing speaks against the training any longer")
    assert transition(cluster) != begun
    assert cluster.condition("Ready")[0] == "True", "the job runs all the same"


def test_an_alarm_outlives_a_job_that_ends_with_it() -> None:
    cluster = running_cluster()
    cluster.report(alarmed(CUT))
    (coordinator,) = cluster.names(lambda pod: pod.component is Component.COORDINATOR)
    cluster.exit(coordinator, 0)
    cluster.reconcile_until_stable()
    assert cluster.status.phase is Phase.SUCCEEDED
    assert alarm_condition(cluster) == ("True", "ResponsesAllCut", "since step 5: every response is cut")


def transition(cluster: Cluster) -> str:
    (found,) = [one for one in cluster.status.conditions if one.type == "TrainingAlarm"]
    return found.last_transition_time
