"""Outcomes of the parts of a decision add up to one, and none speaks for another."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.api.reasons import CONDITIONS, EVENTS
from longshore.api.status import FINISHED_PHASES, ConditionType, PodCounts, RLJobStatus
from longshore_operator.context import Observed
from longshore_operator.plan import DeletePod, Event, Fact, Outcome
from longshore_operator.pod_view import PodView
from longshore_operator.reconcile import reconcile
from tests.properties import examples
from tests.unit.operator.model import CONFIG, START, make_job
from tests.unit.operator.test_reconcile_properties import PODS, STATUSES, _named

READY = {ConditionType.READY: Fact(True, "PodsReady", "all pods are ready")}
SOON, LATER = START + timedelta(seconds=1), START + timedelta(seconds=2)


def test_a_joined_outcome_has_what_both_have() -> None:
    first, second = DeletePod("a", "1"), DeletePod("b", "2")
    event = Event("Normal", "Started", "now", "attempt-1")
    one = Outcome((first,), conditions=READY, status=RLJobStatus(attempt=1), requeue_at=LATER)
    other = Outcome((second,), (event,), status=RLJobStatus(workers=PodCounts(desired=2)), requeue_at=SOON)
    both = one.merge(other)
    assert (both.actions, both.events, both.conditions) == ((first, second), (event,), READY)
    assert (both.status.attempt, both.status.workers.desired) == (1, 2)
    assert both.requeue_at == SOON


def test_an_outcome_that_decides_nothing_changes_nothing() -> None:
    one = Outcome((DeletePod("a", "1"),), conditions=READY, status=RLJobStatus(attempt=1), requeue_at=LATER)
    assert one.merge(Outcome()) == Outcome().merge(one) == one


@pytest.mark.parametrize("twice", [Outcome(conditions=READY), Outcome(status=RLJobStatus(attempt=0))])
def test_two_parts_never_decide_the_same(twice: Outcome) -> None:
    with pytest.raises(AssertionError):
        twice.merge(twice)


@given(
    status=STATUSES.filter(lambda status: status.phase not in FINISHED_PHASES),
    pods=st.lists(PODS, max_size=6).map(_named),
    suspend=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_field_is_decided_and_every_reason_is_a_known_one(
    status: RLJobStatus, pods: tuple[PodView, ...], suspend: bool
) -> None:
    plan = reconcile(make_job(status, suspend=suspend), Observed(pods=pods), START, CONFIG)
    assert plan.status is not None
    assert plan.status.model_fields_set == RLJobStatus.model_fields.keys()
    for condition in plan.status.conditions:
        known = {reason for kind in CONDITIONS[ConditionType(condition.type)].reasons for reason in kind}
        assert condition.reason in known
    assert {action.reason for action in plan.actions if isinstance(action, Event)} <= set(EVENTS)
