"""What the operator remembers of a job between passes."""

from datetime import UTC, datetime, timedelta

from longshore_operator.job_memory import RESYNC, JobMemory

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
