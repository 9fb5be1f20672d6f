"""What the operator remembers of a job between passes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from longshore.api.names import Component
from longshore_operator.job_memory import CLAIM_PATIENCE, NODE_PATIENCE, RESYNC, RESYNC_WHILE_STARTING, JobMemory
from longshore_operator.pod_view import PodView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CHILD = ("ConfigMap", "job")


def remembered() -> JobMemory:
    memory = JobMemory().refreshed("first", "1", (), NOW)
    memory.applied[CHILD] = "fingerprint"
    memory.finished_generation = 3
    return memory


def test_a_job_that_replaces_another_of_its_name_starts_with_an_empty_memory() -> None:
    before = remembered()
    after = before.refreshed("second", "2", (), NOW)
    assert (after.uid, after.applied, after.finished_generation) == ("second", {}, 0)
    assert after.events is before.events, "a new job does not get around the limit of events"


def test_children_are_applied_again_after_a_while() -> None:
    memory = remembered().refreshed("first", "2", (), NOW + RESYNC - timedelta(seconds=1))
    assert memory.applied == {CHILD: "fingerprint"}
    memory = memory.refreshed("first", "3", (), NOW + RESYNC)
    assert memory.applied == {}
    assert memory.finished_generation == 3


PENDING = PodView("job-coordinator", "team", "pod-uid", "job", Component.COORDINATOR, index=0, attempt=1)


def looked_at_after(pod: PodView) -> timedelta:
    """When the volume claim is first read, if passes come only when the memory asks for them."""
    memory, now = JobMemory(), NOW
    memory.note_pods([pod], now)
    while not memory.needs_claim([pod], now):
        now += memory.next_look([pod], now)
        memory.note_pods([pod], now)
    return now - NOW


def test_the_claim_is_read_soon_when_it_may_keep_the_coordinator_from_a_node() -> None:
    """A class that binds with the first pod, and whose provisioner is missing: the scheduler waits and says nothing."""
    assert looked_at_after(PENDING) == NODE_PATIENCE
    assert looked_at_after(replace(PENDING, unschedulable="unbound volume claims")) == timedelta(0)


def test_pods_with_a_node_are_given_time_to_pull_their_image() -> None:
    assert looked_at_after(replace(PENDING, scheduled=True)) == CLAIM_PATIENCE
    assert looked_at_after(replace(PENDING, component=Component.WORKER)) == CLAIM_PATIENCE


def starting(uid: str) -> PodView:
    """A pod that has a node and has not started yet."""
    return replace(PENDING, uid=uid, scheduled=True)


def test_children_are_applied_again_while_a_pod_does_not_start_at_growing_intervals() -> None:
    memory, now, intervals = remembered(), NOW, []
    for _ in range(3):
        applied_at = now
        memory.applied[CHILD] = "fingerprint"
        while memory.refreshed("first", "1", [starting("a")], now).applied:
            now += max(memory.next_look([starting("a")], now), timedelta(seconds=1))
        intervals.append(now - applied_at)
    assert intervals == [RESYNC_WHILE_STARTING * factor for factor in (1, 2, 4)]


def test_pods_that_start_one_after_the_other_cost_no_further_look_at_the_children() -> None:
    """Thousands of pods start on a busy cluster for minutes, each of them within seconds."""
    memory = remembered()
    for number in range(20):
        memory = memory.refreshed("first", "1", [starting(str(number))], NOW + number * RESYNC_WHILE_STARTING)
        assert memory.applied == {CHILD: "fingerprint"}
