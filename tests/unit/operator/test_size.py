"""Worker pods of an elastic job: they come before the coordinator uses them, and go after it does without them."""

from dataclasses import dataclass

import pytest

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.runtime_status import JobSize, RuntimeStatus
from longshore.api.status import Phase
from longshore_operator.context import Admission, Observed
from longshore_operator.pod_view import PodView
from longshore_operator.size import PATIENCE, START_PATIENCE
from tests.unit.operator.model import Cluster

LIMITS = "it needs 1 and takes 4 at most"


@dataclass
class Elastic(Cluster):
    """A job of one to four worker pods, and what the admission grants it."""

    granted: int = 2

    def observed(self, pods: tuple[PodView, ...] | None = None, **more: object) -> Observed:
        held = len(self.workers())
        admission = Admission(
            True,
            AdmittedReason.ADMITTED,
            "admitted",
            num_extra_workers=self.granted - 1,
            is_shrinking=held > self.granted,
        )
        return super().observed(pods, admission=admission, **more)

    def grant(self, num_workers: int) -> None:
        self.granted = num_workers
        self.reconcile_until_stable()

    def asked(self) -> int:
        assert self.status.assignment.size is not None
        return self.status.assignment.size.workers

    def acknowledge(self) -> None:
        """The coordinator runs with what it is asked for."""
        self.report(RuntimeStatus(attempt=self.status.attempt, size=self.status.assignment.size))

    def acknowledge_once(self) -> None:
        """The same, seen by one pass: pods stay as they are."""
        runtime = RuntimeStatus(attempt=self.status.attempt, size=self.status.assignment.size)
        self.status = self.status.model_copy(update={"runtime": runtime})
        self.step()

    def indices(self) -> list[int]:
        return sorted(pod.index for pod in self.workers())

    def resizing(self) -> tuple[str, str]:
        return self.condition("Resizing")[:2]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if event.reason in ("Growing", "Shrinking", "Resized")]


def made() -> Elastic:
    """A job that runs with two worker pods."""
    cluster = Elastic(spec={"workers": {"replicas": 4, "minReplicas": 1, "gpusPerPod": 1}, "reward": {"pods": 0}})
    cluster.reconcile_until_stable()
    cluster.acknowledge()
    return cluster


@pytest.fixture
def job() -> Elastic:
    return made()


class TestStart:
    def test_a_job_starts_with_what_it_was_granted(self, job: Elastic) -> None:
        assert job.indices() == [0, 1]
        assert job.status.assignment.size == JobSize(epoch=1, workers=2, held=2)
        assert job.status.phase is Phase.RUNNING
        assert job.status.admission is not None
        assert job.status.admission.workers == 2
        assert job.condition("Resizing") == ("False", "AsGranted", f"the job has 2 worker pods; {LIMITS}")

    def test_where_nobody_limits_it_it_has_all_pods_and_is_asked_for_nothing(self) -> None:
        cluster = Cluster(spec={"workers": {"replicas": 4, "minReplicas": 1, "gpusPerPod": 1}})
        cluster.reconcile_until_stable()
        assert len(cluster.workers()) == 4
        assert cluster.status.assignment.size is None
        assert all(condition.type != "Resizing" for condition in cluster.status.conditions)

    def test_a_new_attempt_starts_with_what_is_granted_then(self, job: Elastic) -> None:
        job.granted = 1
        job.exit("demo-coordinator", 75)
        job.reconcile_until_stable()
        assert job.status.attempt == 2
        assert job.indices() == [0]
        assert job.status.assignment.size is not None
        assert (job.asked(), job.status.assignment.size.held) == (1, 1)

    def test_a_new_attempt_keeps_no_pods_that_the_old_one_had_not_given_back(self, job: Elastic) -> None:
        job.grant(1)
        assert job.indices() == [0, 1]
        job.exit("demo-coordinator", 75)
        job.reconcile_until_stable()
        assert job.indices() == [0]
        assert job.status.assignment.size is not None
        assert (job.asked(), job.status.assignment.size.held) == (1, 1)


class TestGrowth:
    def test_the_coordinator_is_asked_when_all_new_pods_are_ready(self, job: Elastic) -> None:
        job.granted = 4
        job.step()
        assert job.indices() == [0, 1, 2, 3]
        for _ in range(3):
            assert job.asked() == 2
            assert job.status.phase is Phase.RUNNING, "the job goes on while they start"
            job.kubelet()
            job.step()
        assert job.asked() == 4
        assert job.resizing() == ("True", "Growing")
        job.acknowledge()
        assert job.resizing() == ("False", "AsGranted")
        assert job.reasons() == ["Growing", "Resized"]

    def test_a_new_pod_that_finds_no_node_does_not_trouble_the_job(self, job: Elastic) -> None:
        job.granted = 3
        job.step()
        job.change("demo-worker-2", unschedulable="0/1 nodes are available")
        job.step()
        assert job.status.phase is Phase.RUNNING
        assert job.condition("Scheduled")[0] == job.condition("Ready")[0] == "True"


class TestShrinking:
    def test_pods_stay_until_the_coordinator_does_without_them(self, job: Elastic) -> None:
        job.grant(1)
        assert job.indices() == [0, 1]
        assert job.status.assignment.size == JobSize(epoch=2, workers=1, held=2)
        assert job.resizing() == ("True", "Shrinking")
        assert job.status.admission is not None
        assert job.status.admission.shrinking_since is not None
        job.acknowledge()
        assert job.indices() == [0]
        assert job.status.phase is Phase.RUNNING
        assert job.resizing() == ("False", "AsGranted")
        assert job.reasons() == ["Shrinking", "Resized"]
        assert job.status.admission.shrinking_since is None
        assert job.status.attempt == 1

    def test_the_job_runs_on_while_a_pod_ends(self, job: Elastic) -> None:
        job.grant(1)
        runtime = RuntimeStatus(attempt=1, size=job.status.assignment.size)
        job.status = job.status.model_copy(update={"runtime": runtime})
        job.step()
        assert job.pods["demo-worker-1"].deleting
        job.step()
        assert job.status.phase is Phase.RUNNING
        assert job.condition("Ready")[0] == "True"
        assert "PodLost" not in {event.reason for event in job.events}

    def test_a_pod_that_is_lost_meanwhile_is_replaced(self, job: Elastic) -> None:
        """The coordinator may wait for it, and would never come to the end of its step."""
        job.grant(1)
        del job.pods["demo-worker-1"]
        job.reconcile_until_stable()
        assert job.indices() == [0, 1]

    def test_a_growth_that_was_asked_for_is_withdrawn_with_an_answer_only(self, job: Elastic) -> None:
        job.grant(4)
        assert job.asked() == 4
        job.grant(2)
        assert job.status.assignment.size == JobSize(epoch=3, workers=2, held=4)
        old = JobSize(epoch=1, workers=2, held=2)
        job.report(RuntimeStatus(attempt=1, step=1, size=old))
        assert job.indices() == [0, 1, 2, 3], "it may have begun to use them without having said so"
        job.acknowledge()
        assert job.indices() == [0, 1]

    def test_pods_that_an_unanswered_change_left_stay_through_the_next(self, job: Elastic) -> None:
        job.grant(4)
        job.acknowledge()
        job.grant(2)
        job.grant(1)
        assert job.status.assignment.size == JobSize(epoch=4, workers=1, held=4)
        assert job.indices() == [0, 1, 2, 3]
        job.acknowledge()
        assert job.indices() == [0]

    def test_only_worker_pods_with_the_highest_indices_go(self, job: Elastic) -> None:
        before = {pod.name: pod.uid for pod in job.pods.values()}
        job.grant(4)
        job.acknowledge()
        job.grant(1)
        job.acknowledge()
        kept = {pod.name: pod.uid for pod in job.pods.values()}
        assert kept == {name: uid for name, uid in before.items() if name != "demo-worker-1"}
        assert {pod.component for pod in job.pods.values()} == {Component.COORDINATOR, Component.WORKER}


class TestMissingPods:
    """Pods that the job does not need and that do not come: after a while it goes on without them."""

    @staticmethod
    def without(job: Elastic, *indices: int) -> None:
        """These pods are lost with their node, and no other node fits their successors."""
        for index in indices:
            job.pods.pop(f"demo-worker-{index}", None)
        job.step()
        for index in indices:
            job.change(f"demo-worker-{index}", unschedulable="0/3 nodes are available")
        job.step()

    def test_a_job_waits_a_while_for_a_lost_pod_and_then_goes_on_without_it(self, job: Elastic) -> None:
        job.grant(4)
        job.acknowledge()
        self.without(job, 3)
        assert (job.status.phase, job.asked()) == (Phase.RESTARTING, 4)
        at = job.plan().requeue_at
        assert at is not None
        assert at - job.now == PATIENCE
        job.pass_time(PATIENCE.total_seconds())
        job.step()
        assert job.status.assignment.size == JobSize(epoch=3, workers=3, held=4)
        assert job.status.phase is Phase.RUNNING
        status, reason, message = job.condition("Resizing")
        assert (status, reason) == ("True", "Growing")
        assert message.endswith("demo-worker-3: 0/3 nodes are available")
        job.acknowledge_once()
        assert job.indices() == [0, 1, 2, 3], "it is still granted, and still wanted"

    def test_it_takes_the_pod_when_it_is_there_after_all(self, job: Elastic) -> None:
        self.without(job, 1)
        job.pass_time(PATIENCE.total_seconds())
        job.step()
        job.acknowledge_once()
        assert job.asked() == 1
        job.reconcile_until_stable()
        assert job.asked() == 2
        job.acknowledge()
        assert job.resizing() == ("False", "AsGranted")

    def test_it_gives_the_missing_pod_back_at_once_when_others_wait_for_it(self, job: Elastic) -> None:
        self.without(job, 1)
        job.pass_time(PATIENCE.total_seconds())
        job.step()
        job.acknowledge_once()
        job.grant(1)
        assert job.indices() == [0]
        assert job.status.assignment.size == JobSize(epoch=2, workers=1, held=2)

    def test_a_start_ends_without_pods_that_find_no_node(self) -> None:
        cluster = Elastic(spec={"workers": {"replicas": 4, "minReplicas": 1, "gpusPerPod": 1}, "reward": {"pods": 0}})
        cluster.granted = 4
        for _ in range(8):
            cluster.step()
            cluster.kubelet()
            for index in (2, 3):
                if f"demo-worker-{index}" in cluster.pods:
                    cluster.change(f"demo-worker-{index}", phase="Pending", scheduled=False, ready=False, node=None)
        cluster.acknowledge_once()
        assert (cluster.status.assignment.size, cluster.status.phase) == (None, Phase.STARTING)
        cluster.pass_time(PATIENCE.total_seconds())
        cluster.step()
        assert (cluster.asked(), cluster.status.phase) == (2, Phase.RUNNING)

    def test_a_job_whose_replicas_lie_in_two_pods_starts_with_whole_sets(self) -> None:
        workers = {"replicas": 4, "minReplicas": 2, "gpusPerPod": 1}
        cluster = Elastic(spec={"workers": workers, "trainer": {"fsdpSize": 2}, "reward": {"pods": 0}}, granted=3)
        for _ in range(8):
            cluster.step()
            cluster.kubelet()
            if "demo-worker-3" in cluster.pods:
                cluster.change("demo-worker-3", phase="Pending", scheduled=False, ready=False, node=None)
        cluster.acknowledge_once()
        cluster.pass_time(PATIENCE.total_seconds())
        cluster.step()
        assert (cluster.asked(), cluster.status.phase) == (2, Phase.RUNNING)

    def test_a_pod_that_has_a_node_is_given_time_to_pull_its_image(self, job: Elastic) -> None:
        self.without(job, 1)
        job.change("demo-worker-1", unschedulable=None, scheduled=True, node="node-1")
        job.pass_time(START_PATIENCE.total_seconds() - 1)
        job.step()
        assert job.asked() == 2
        job.pass_time(1)
        job.step()
        assert job.asked() == 1

    def test_a_pod_that_the_job_needs_is_awaited_for_ever(self, job: Elastic) -> None:
        self.without(job, 0)
        job.pass_time(1_000_000)
        job.step()
        assert job.asked() == 2
        assert job.status.phase is Phase.RESTARTING

    def test_a_coordinator_that_has_not_answered_is_asked_for_nothing_else(self, job: Elastic) -> None:
        """It may use any of the pods, so nobody could say which of them have to stay."""
        job.grant(4)
        self.without(job, 3)
        job.pass_time(PATIENCE.total_seconds())
        job.step()
        assert job.asked() == 4


def test_a_coordinator_that_reports_more_pods_than_the_job_has_is_not_believed() -> None:
    """The operator computes the shape of a job pod by pod, so an unbounded number would exhaust its memory."""
    cluster = Cluster(spec={"workers": {"replicas": 1, "gpusPerPod": 1}, "rollout": {"handover": "Streamed"}})
    cluster.reconcile_until_stable()
    assert cluster.condition("RepurposeUnavailable")[:2] == ("True", "NoPodToSpare")
    cluster.report(RuntimeStatus(attempt=1, size=JobSize(epoch=1, workers=64, held=64)))
    assert cluster.condition("RepurposeUnavailable")[:2] == ("True", "NoPodToSpare")
