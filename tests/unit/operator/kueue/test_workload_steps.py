"""Steps of the operator on the Workload of a job, on a cluster in memory: from the queue to its end."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.reasons import AdmittedReason
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_kube.access import Access
from longshore_kube.reflector import Changed, Listed
from longshore_operator.config import OperatorConfig
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.kueue_client import KueueClient, queue_of
from longshore_operator.kueue.view import KueueView, Priority
from longshore_operator.kueue.workload import workload
from longshore_operator.plan import CreateObject, DeleteObject, PatchObject
from longshore_operator.reconcile import reconcile, reject
from tests.unit.operator.kueue.workloads import (
    CONFIG,
    ELASTIC,
    RESUMED,
    SUSPENDED,
    VIEW,
    assigned,
    conditions,
    inactive,
    stored,
)
from tests.unit.operator.model import Cluster, make_job


class TestSteps:
    """What the operator does to the Workload: at most one step a pass."""

    def look(self, cluster: Cluster, view: KueueView, config: OperatorConfig = CONFIG) -> list[object]:
        cluster.config = config
        plan = reconcile(cluster.job, cluster.observed(kueue=view), cluster.now, config)
        cluster.apply(plan)
        return [action for action in plan.actions if isinstance(action, CreateObject | DeleteObject | PatchObject)]

    def running(self) -> tuple[Cluster, KueueView]:
        cluster = Cluster()
        view = stored(VIEW, QuotaReserved="True/QuotaReserved/", Admitted="True/Admitted/")
        for _ in range(9):
            self.look(cluster, view)
            cluster.kubelet()
        assert cluster.status.phase is Phase.RUNNING
        return cluster, view

    def patched(self, steps: list[object]) -> dict[str, dict[str, Any]]:
        """Conditions that one patch of the status writes, by type."""
        (step,) = steps
        assert isinstance(step, PatchObject)
        assert step.subresource == "status"
        assert step.change["metadata"] == {"resourceVersion": "7"}
        return {one["type"]: one for one in step.change["status"]["conditions"]}

    def test_a_new_job_gets_a_workload_and_no_pods(self) -> None:
        cluster = Cluster()
        (step,) = self.look(cluster, VIEW)
        assert isinstance(step, CreateObject)
        assert cluster.pods == {}
        assert cluster.status.phase is Phase.QUEUED

    def test_quota_is_given_back_only_when_no_pod_is_left(self) -> None:
        cluster, _ = self.running()
        evicted = stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/", Evicted="True/Preempted/for another")
        assert self.look(cluster, evicted) == []
        assert cluster.status.phase is Phase.QUEUED
        assert self.look(cluster, evicted) == []
        cluster.pods.clear()
        released = self.patched(self.look(cluster, evicted))
        assert released["QuotaReserved"]["status"] == released["Admitted"]["status"] == "False"
        assert (released["Requeued"]["status"], released["Requeued"]["reason"]) == ("True", "Preempted")

    def test_kueue_decides_when_a_job_returns_that_it_did_not_preempt(self) -> None:
        evicted = stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/", Evicted="True/Deactivated/")
        assert self.patched(self.look(Cluster(), evicted))["Requeued"]["status"] == "False"

    def test_a_suspension_deactivates_the_workload_only_when_no_pod_is_left(self) -> None:
        """Kueue gives the quota of an inactive Workload to others at once."""
        cluster, view = self.running()
        cluster.spec = {"suspend": True}
        while cluster.pods:
            assert self.look(cluster, view) == []
            cluster.kubelet()
        assert self.look(cluster, view) == [SUSPENDED]

    def test_a_preemption_of_a_suspended_job_does_not_queue_it_again(self) -> None:
        evicted = stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/", Evicted="True/Preempted/")
        suspended = Cluster(spec={"suspend": True})
        assert self.look(suspended, evicted) == [SUSPENDED]
        assert self.patched(self.look(suspended, inactive(evicted)))["QuotaReserved"]["status"] == "False"

    def test_a_job_that_resumes_before_kueue_has_evicted_it_waits_for_that(self) -> None:
        cluster, admitted = Cluster(), inactive(stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/"))
        assert self.look(cluster, admitted) == []
        assert cluster.pods == {}
        assert cluster.condition("Admitted")[1] == "Evicted"
        released = inactive(stored(VIEW, QuotaReserved="False/Pending/", Evicted="True/Deactivated/"))
        assert self.look(cluster, released) == [RESUMED]

    def test_a_job_that_somebody_deactivated_stops_gives_its_quota_back_and_stays_so(self) -> None:
        cluster, admitted = self.running()
        assert self.look(cluster, inactive(admitted, by="kubectl-patch")) == []
        evicted = stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/", Evicted="True/Deactivated/")
        while cluster.pods:
            assert self.look(cluster, inactive(evicted, by="kubectl-patch")) == []
            cluster.kubelet()
        gone = self.patched(self.look(cluster, inactive(evicted, by="kubectl-patch")))
        assert (gone["QuotaReserved"]["status"], gone["Requeued"]["status"]) == ("False", "False")
        left = stored(VIEW, QuotaReserved="False/Pending/", Evicted="True/Deactivated/")
        cluster.spec, cluster.generation = {"workers": {"replicas": 5}}, 2
        assert self.look(cluster, inactive(left, by="kubectl-patch")) == []
        assert cluster.condition("Admitted")[1:] == (
            "Deactivated",
            "kubectl-patch set spec.active of Workload demo-rljob to false; to queue it again, set spec.active of the "
            "Workload to true, or suspend and resume the job",
        )

    def test_a_suspension_makes_a_deactivated_job_the_users_again(self) -> None:
        left = inactive(stored(VIEW, QuotaReserved="False/Pending/", Evicted="True/Deactivated/"), by="kubectl-patch")
        [noted] = self.look(Cluster(spec={"suspend": True}), left)
        assert isinstance(noted, PatchObject)
        assert noted.change == {"metadata": {"annotations": {"longshore.dev/suspended": "true"}}}
        resumed = inactive(stored(VIEW, QuotaReserved="False/Pending/"))
        assert self.look(Cluster(spec={"suspend": True}), resumed) == []
        assert self.look(Cluster(), resumed) == [RESUMED]

    def test_kueue_gets_a_reason_after_which_a_deactivated_job_may_return(self) -> None:
        reason = "DeactivatedDueToMaximumExecutionTimeExceeded"
        evicted = inactive(stored(VIEW, QuotaReserved="True/a/", Evicted=f"True/{reason}/too long"), by="kueue")
        requeued = self.patched(self.look(Cluster(), evicted))["Requeued"]
        assert (requeued["status"], requeued["reason"], requeued["message"]) == ("False", "Deactivated", "too long")

    def test_a_deactivation_that_is_over_does_not_await_the_next_activation(self) -> None:
        evicted = stored(VIEW, QuotaReserved="True/a/", Evicted="True/Preempted/", DeactivationTarget="True/why/")
        assert "DeactivationTarget" in self.patched(self.look(Cluster(), evicted))
        assert "DeactivationTarget" not in self.patched(self.look(Cluster(), inactive(evicted, by="kueue")))

    def test_another_size_makes_another_workload_while_no_quota_is_held(self) -> None:
        cluster = Cluster(spec={"workers": {"replicas": 5}}, generation=2)
        assert self.look(cluster, stored(VIEW)) == [DeleteObject("demo-rljob", "workload-uid", "Workload@v1beta2")]

    def test_quota_for_smaller_settings_is_given_back_before_the_job_goes_on(self) -> None:
        """It was suspended, changed and resumed between two looks of the operator."""
        cluster, view = self.running()
        cluster.spec, cluster.generation = {"workers": {"replicas": 5, "gpusPerPod": 8}}, 4
        assert self.look(cluster, view) == []
        assert cluster.status.phase is Phase.QUEUED
        assert cluster.condition("Admitted")[2] == (
            "the settings have changed since the job was admitted, so it queues again"
        )
        while cluster.pods:
            assert self.look(cluster, view) == []
            cluster.kubelet()
        assert self.look(cluster, view) == [DeleteObject("demo-rljob", "workload-uid", "Workload@v1beta2")]
        (step,) = self.look(cluster, VIEW)
        assert isinstance(step, CreateObject)
        assert cluster.pods == {}
        made = conditions(QuotaReserved="True/QuotaReserved/", Admitted="True/Admitted/") | step.manifest
        made["metadata"]["resourceVersion"] = "8"
        for _ in range(9):
            self.look(cluster, replace(VIEW, workload=made))
            cluster.kubelet()
        assert (cluster.status.phase, len(cluster.workers())) == (Phase.RUNNING, 5)

    @pytest.mark.parametrize("attempt", [0, 1])
    def test_quota_for_settings_that_were_changed_in_the_queue_starts_nothing(self, attempt: int) -> None:
        """Kueue was faster than the operator, or that did not run."""
        status = RLJobStatus(attempt=attempt, phase=Phase.QUEUED, admission=AdmissionStatus(queue="team"))
        cluster = Cluster(spec={"workers": {"replicas": 8, "gpusPerPod": 4}}, status=status, generation=4)
        assert self.look(cluster, assigned(2)) == [DeleteObject("demo-rljob", "workload-uid", "Workload@v1beta2")]
        assert (cluster.status.phase, cluster.pods) == (Phase.QUEUED, {})

    def test_a_workload_of_earlier_settings_is_not_activated_before_it_is_replaced(self) -> None:
        status = RLJobStatus(phase=Phase.SUSPENDED, admission=AdmissionStatus(queue="team"))
        cluster = Cluster(spec={"workers": {"replicas": 8, "gpusPerPod": 4}}, status=status, generation=4)
        waiting = inactive(stored(VIEW, QuotaReserved="False/Pending/"))
        assert self.look(cluster, waiting) == [DeleteObject("demo-rljob", "workload-uid", "Workload@v1beta2")]

    def test_settings_that_need_no_other_quota_keep_it(self) -> None:
        cluster, view = self.running()
        cluster.spec, cluster.generation = {"checkpoint": {"everySteps": 2}}, 4
        for _ in range(9):
            self.look(cluster, view)
            cluster.kubelet()
        assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, 2)

    @pytest.mark.parametrize(
        "view",
        [
            replace(VIEW, queue="other"),
            replace(VIEW, priority=Priority("p", 5, is_kueues=True)),
        ],
        ids=["queue", "priority"],
    )
    def test_another_queue_or_priority_makes_another_workload(self, view: KueueView) -> None:
        """Labels of a job have no generation."""
        view = replace(view, workload=stored(VIEW).workload)
        assert self.look(Cluster(), view) == [DeleteObject("demo-rljob", "workload-uid", "Workload@v1beta2")]

    def test_another_default_of_an_upgraded_operator_costs_no_job_its_place_in_the_queue(self) -> None:
        """The spec that the user wrote is the same: here the new version reads a least number of workers from it."""
        upgraded = Cluster(spec={"workers": ELASTIC})
        before = stored(VIEW)
        assert before.workload is not None
        assert before.workload["spec"] != workload(upgraded.job, CONFIG, VIEW)["spec"]
        assert self.look(upgraded, before) == []

    def test_a_job_keeps_its_place_when_kueue_serves_another_version(self) -> None:
        before = stored(KueueView("team", "v1beta1", priority=Priority("p", 5, is_kueues=True)))
        assert self.look(Cluster(), replace(before, version="v1beta2")) == []

    def test_a_change_that_asks_for_the_same_pods_with_another_image_is_noted_once(self) -> None:
        """A change that is not noted would look like a change of the pods after an upgrade."""
        cluster, view = Cluster(spec={"ttlSecondsAfterFinished": 60}, generation=2), stored(VIEW)
        upgraded = replace(CONFIG, runtime_image="runtime:2")
        [step] = self.look(cluster, view, upgraded)
        assert isinstance(step, PatchObject)
        change = step.change["metadata"]["annotations"]
        assert change == {"longshore.dev/generation": "2"}
        assert view.workload is not None
        metadata = view.workload["metadata"]
        noted = {**view.workload, "metadata": {**metadata, "annotations": {**metadata["annotations"], **change}}}
        assert self.look(cluster, replace(view, workload=noted), upgraded) == []

    def test_the_end_is_reported_when_the_pods_are_gone(self) -> None:
        cluster, view = self.running()
        cluster.exit("demo-coordinator", 0)
        assert self.look(cluster, view) == []
        for name in cluster.names(lambda pod: not pod.terminal):
            del cluster.pods[name]
        finished = self.patched(self.look(cluster, view))["Finished"]
        assert (finished["status"], finished["reason"]) == ("True", "Succeeded")

    def test_the_workload_of_another_job_of_the_name_is_left_alone_and_admits_nobody(self) -> None:
        view = stored(VIEW, QuotaReserved="True/a/", Admitted="True/b/")
        assert view.workload is not None
        cluster = Cluster()
        for owners in ([], [{"controller": True, "uid": "of-another"}]):
            foreign = {"metadata": {**view.workload["metadata"], "ownerReferences": owners}}
            assert self.look(cluster, replace(view, workload={**view.workload, **foreign})) == []
            assert (cluster.status.phase, cluster.pods) == (Phase.QUEUED, {})

    def test_a_job_that_cannot_be_read_leaves_its_quota_when_its_pods_are_gone(self) -> None:
        cluster, view = self.running()
        with pytest.raises(ValidationError) as caught:
            make_job(unknown=1)
        pods = tuple(cluster.pods.values())
        first = reject(cluster.status, 2, caught.value, pods, cluster.now, view)
        assert not any(isinstance(action, DeleteObject) for action in first.actions)
        assert first.status is not None
        second = reject(first.status, 2, caught.value, (), cluster.now, view)
        assert second.actions == (DeleteObject("demo-rljob", "workload-uid", "Workload@v1beta2"),)


class TestPartialAdmission:
    def test_each_attempt_runs_with_the_size_that_kueue_has_given_it(self) -> None:
        cluster = Cluster(spec={"workers": ELASTIC}, config=CONFIG)

        def until_stable(view: KueueView) -> None:
            for _ in range(12):
                cluster.apply(reconcile(cluster.job, cluster.observed(kueue=view), cluster.now, CONFIG))
                cluster.kubelet()

        for attempt, count in enumerate((5, 8, 2), 1):
            until_stable(assigned(count))
            size = cluster.status.assignment.size
            assert size is not None
            assert (cluster.status.phase, cluster.status.attempt) == (Phase.RUNNING, attempt)
            assert (size.workers, size.held, len(cluster.workers())) == (count, count, count)
            evicted = stored(VIEW, Evicted="True/Preempted/why", QuotaReserved="True/QuotaReserved/")
            until_stable(evicted)
            assert cluster.pods == {}


class TestPodGroup:
    """A job cannot start without the PodGroup that it asks for."""

    SPEC = {"scheduling": {"podGroup": "Volcano"}}

    @pytest.mark.parametrize("view", [inactive(stored(VIEW, QuotaReserved="False/Pending/")), assigned(2)])
    def test_a_job_that_cannot_start_neither_queues_nor_keeps_quota(self, view: KueueView) -> None:
        status = RLJobStatus(attempt=1, phase=Phase.SUSPENDED, admission=AdmissionStatus(queue="team"))
        cluster = Cluster(spec=self.SPEC, status=status, pod_group_mistake="no Volcano")
        plan = cluster.plan(kueue=replace(view, mistake="no Volcano"))
        cluster.apply(plan)
        assert [action.name for action in plan.actions if isinstance(action, DeleteObject)] == ["demo-rljob"]
        assert cluster.condition("Admitted") == ("False", AdmittedReason.POD_GROUP_UNAVAILABLE, "no Volcano")

    def test_a_job_that_runs_keeps_its_quota(self) -> None:
        status = RLJobStatus(attempt=1, phase=Phase.RUNNING, admission=AdmissionStatus(admitted=True, queue="team"))
        cluster = Cluster(spec=self.SPEC, status=status, pod_group_mistake="no Volcano")
        plan = cluster.plan(kueue=assigned(2))
        assert not [action for action in plan.actions if isinstance(action, DeleteObject)]


class TestLeavingTheQueue:
    def test_a_job_whose_quota_may_come_back_with_kueue_stays_in_its_queue(self) -> None:
        cluster = Cluster()
        cluster.apply(cluster.plan(kueue=VIEW))
        assert queue_of(cluster.job) == "team"
        cluster.apply(cluster.plan(kueue=KueueView("team", mistake="Kueue is not installed")))
        assert queue_of(cluster.job) == "team"


def test_a_workload_that_goes_while_nobody_follows_is_noticed_in_the_next_list() -> None:
    client = KueueClient(KubeClient(Access("http://nowhere")), CONFIG, None, lambda _: None)
    a, b, c = ("team", "a"), ("team", "b"), ("team", "c")
    assert client._concerned(Listed([a, b], 1)) == [a, b]
    assert client._concerned(Changed("ADDED", c)) == [c]
    assert client._concerned(Listed([a], 9)) == [a, b, c]
    assert client._concerned(Listed([a], 12)) == [a]
