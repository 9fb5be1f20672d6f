"""Quota of reward pods that are not wanted for long goes back to Kueue, and is not used again in the same admission."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.api.runtime_status import RewardLoad, RuntimeStatus
from longshore.api.status import RewardPodCounts
from longshore_kube.times import rfc3339
from longshore_operator.config import OperatorConfig
from longshore_operator.kueue.kueue_admission import NUM_STEPS, WINDOW, reclaimable
from longshore_operator.kueue.view import KueueView
from longshore_operator.plan import PatchObject
from longshore_operator.reconcile import reconcile
from tests.unit.operator.kueue.workloads import VIEW, stored
from tests.unit.operator.model import Cluster

CONFIG = OperatorConfig(runtime_image="runtime:1", kueue=True)
HOUR_S = WINDOW.total_seconds()
MOST = 8


class Admitted:
    """A job with one to eight reward pods, and its Workload, which patches of the operator change."""

    def __init__(self) -> None:
        self.cluster = Cluster(spec={"reward": {"pods": 1, "maxPods": MOST, "workersPerPod": 1}}, config=CONFIG)
        found = stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/", PodsReady="True/c/").workload
        assert found is not None
        sets = [{"name": "coordinator", "count": 1}, {"name": "worker", "count": 2}, {"name": "reward", "count": MOST}]
        status = {**found["status"], "admission": {"podSetAssignments": sets}}
        self.workload: dict[str, Any] = {**found, "status": status}
        self.step = 0
        for _ in range(9):
            self.look()
            self.cluster.kubelet()

    @property
    def view(self) -> KueueView:
        return replace(VIEW, workload=self.workload)

    @property
    def reclaimed(self) -> int:
        return sum(one["count"] for one in self.workload["status"].get("reclaimablePods") or ())

    def look(self) -> list[PatchObject]:
        """One pass of the operator."""
        plan = reconcile(self.cluster.job, self.cluster.observed(kueue=self.view), self.cluster.now, CONFIG)
        self.cluster.apply(plan)
        patches = [action for action in plan.actions if isinstance(action, PatchObject)]
        for patch in patches:
            assert patch.change["metadata"]["resourceVersion"] == self.workload["metadata"]["resourceVersion"]
            self.workload = {**self.workload, "status": {**self.workload["status"], **patch.change["status"]}}
        assert self.num_reward_pods() <= MOST - self.reclaimed, "more pods than quota"
        return patches

    def settle(self) -> None:
        for _ in range(6):
            self.look()
            self.cluster.kubelet()

    def report(self, *, busy: int = 0, waiting: int = 0) -> None:
        """The coordinator reports its step and the load of the reward pods that are ready."""
        num_ready = sum(pod.ready and "-reward-" in pod.name for pod in self.cluster.pods.values())
        load = RewardLoad(workers=num_ready, busy=min(busy, num_ready), queue_length=waiting)
        runtime = RuntimeStatus(attempt=self.cluster.status.attempt, step=self.step, rewards=load)
        self.cluster.status = self.cluster.status.model_copy(update={"runtime": runtime})
        self.settle()

    def pass_steps(self, number: int, seconds: float) -> None:
        for _ in range(number):
            self.step += 1
            self.cluster.pass_time(seconds / number)
            self.report()

    def num_reward_pods(self) -> int:
        return len(self.cluster.names(lambda pod: "-reward-" in pod.name))


@pytest.fixture
def job() -> Admitted:
    made = Admitted()
    made.cluster.pass_time(60)
    made.report()
    return made


def test_pods_that_no_step_of_an_hour_wanted_are_given_back_with_an_event(job: Admitted) -> None:
    job.report(busy=1, waiting=4)
    assert job.num_reward_pods() == 2
    job.pass_steps(NUM_STEPS, HOUR_S - 60)
    assert job.reclaimed == 0
    job.pass_steps(1, 60)
    assert job.workload["status"]["reclaimablePods"] == [{"name": "reward", "count": MOST - 2}]
    event = job.cluster.events[-1]
    assert (event.type, event.reason) == ("Normal", "QuotaReturned")
    assert event.message.startswith("no more than 2 reward pods were wanted since 2026-01-01T00:01:00Z: Kueue gets")
    assert len(job.workload["status"]["conditions"]) == 3, "the patch leaves the conditions alone"
    assert job.look() == []


def test_an_hour_is_not_enough_where_steps_take_longer(job: Admitted) -> None:
    job.pass_steps(NUM_STEPS - 1, 5 * HOUR_S)
    assert job.reclaimed == 0
    job.pass_steps(1, HOUR_S)
    assert job.reclaimed == MOST - 1


def test_the_operator_looks_again_when_the_hour_is_over(job: Admitted) -> None:
    plan = reconcile(job.cluster.job, job.cluster.observed(kueue=job.view), job.cluster.now, CONFIG)
    assert plan.requeue_at is not None
    assert (plan.requeue_at - job.cluster.now).total_seconds() == HOUR_S


def test_pods_that_are_given_back_do_not_return_in_this_admission(job: Admitted) -> None:
    job.pass_steps(NUM_STEPS, HOUR_S)
    assert job.reclaimed == MOST - 1
    job.cluster.pass_time(60)
    job.report(busy=1, waiting=100)
    assert (job.num_reward_pods(), job.cluster.status.rewards.desired) == (1, 1)


def test_quota_of_a_pod_that_still_ends_is_not_given_back(job: Admitted) -> None:
    window = RewardPodCounts(peak=1, peak_since=rfc3339(job.cluster.now - WINDOW))
    first, now = job.cluster.pods["demo-reward-0"], job.cluster.now
    ending = replace(first, name="demo-reward-1", index=1, deleting=True, phase="Running")
    assert reclaimable(job.view, window, NUM_STEPS, (first, ending), now) is None
    gone = replace(ending, phase="Failed")
    assert reclaimable(job.view, window, NUM_STEPS, (first, gone), now) == [{"name": "reward", "count": MOST - 1}]


def test_the_next_admission_is_for_all_pods_again(job: Admitted) -> None:
    job.pass_steps(NUM_STEPS, HOUR_S)
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "", "lastTransitionTime": ""}
    conditions = [*job.workload["status"]["conditions"], evicted]
    job.workload = {**job.workload, "status": {**job.workload["status"], "conditions": conditions}}
    job.settle()
    assert job.cluster.pods == {}
    assert (job.workload["status"]["admission"], job.workload["status"]["reclaimablePods"]) == (None, None)
    assert job.cluster.status.rewards.peak_since is None


def test_a_job_without_kueue_remembers_no_peak() -> None:
    cluster = Cluster(spec={"reward": {"pods": 1, "maxPods": 3}})
    cluster.reconcile_until_stable()
    assert cluster.status.rewards.peak_since is None


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 40), st.sampled_from([1.0, 30.0, 200.0, 2000.0, HOUR_S])),
        max_size=8,
    )
)
def test_there_are_never_more_reward_pods_than_quota_and_quota_never_grows(
    steps: list[tuple[int, int, float]],
) -> None:
    job = Admitted()
    reclaimed = 0
    for busy, waiting, seconds in steps:
        job.step += 1
        job.cluster.pass_time(seconds)
        job.report(busy=busy, waiting=waiting)
        assert job.reclaimed >= reclaimed
        reclaimed = job.reclaimed
