"""Jobs of MultiKueue: in the cluster of the queue, where they start nothing, and in the cluster that runs them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from longshore.api.reasons import AdmittedReason
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_operator.kueue.kueue_admission import decide_admission
from longshore_operator.kueue.view import KueueView
from longshore_operator.kueue.workload import workload
from longshore_operator.kueue.workload_steps import unusable
from longshore_operator.plan import CreateObject, CreatePod, DeleteJob, PatchObject
from longshore_operator.reconcile import reconcile
from tests.unit.operator.kueue.workloads import CONFIG, SUSPENDED, VIEW, conditions, inactive, stored
from tests.unit.operator.model import Cluster, make_job

ELSEWHERE = {"managedBy": "kueue.x-k8s.io/multikueue"}
RESERVED = {"QuotaReserved": "True/QuotaReserved/"}
ADMITTED = RESERVED | {"Admitted": "True/Admitted/"}
PREBUILT = {"kueue.x-k8s.io/prebuilt-workload-name": "of-multikueue"}
RUNNING = RLJobStatus(
    attempt=2, phase=Phase.RUNNING, admission=AdmissionStatus(admitted=True, gpus={"a": 2}, queue="q")
)


def look(cluster: Cluster, view: KueueView | None) -> list[object]:
    """What one pass does besides writing the status; it never starts pods."""
    plan = reconcile(cluster.job, cluster.observed(kueue=view), cluster.now, CONFIG)
    cluster.apply(plan)
    assert not [action for action in plan.actions if isinstance(action, CreatePod)]
    return [action for action in plan.actions if isinstance(action, CreateObject | PatchObject | DeleteJob)]


class TestWhereTheJobIsQueued:
    def test_a_job_that_waits_has_a_workload_and_says_what_kueue_does(self) -> None:
        cluster = Cluster(spec=ELSEWHERE)
        [step] = look(cluster, VIEW)
        assert isinstance(step, CreateObject)
        view = stored(VIEW, **RESERVED)
        assert view.workload is not None
        check = {"name": "clusters", "state": "Pending", "message": 'The workload got reservation on "east"'}
        status = {**view.workload["status"], "admissionChecks": [check, {"name": "other", "state": "Ready"}]}
        assert look(cluster, replace(view, workload={**view.workload, "status": status})) == []
        assert cluster.status.phase is Phase.QUEUED
        assert cluster.condition("Admitted")[1:] == (
            "QuotaPending",
            "Kueue has reserved the quota and waits for admission checks; "
            'clusters: The workload got reservation on "east"',
        )

    @pytest.mark.parametrize("status", [RLJobStatus(), RUNNING, RLJobStatus(phase=Phase.SUCCEEDED)])
    def test_a_job_that_was_sent_away_has_its_status_from_there(self, status: RLJobStatus) -> None:
        cluster = Cluster(spec=ELSEWHERE, status=status)
        for view in (stored(VIEW, **ADMITTED), stored(VIEW, **ADMITTED, Evicted="True/Preempted/")):
            assert reconcile(cluster.job, cluster.observed(kueue=view), cluster.now, CONFIG).status is None
            look(cluster, view)
        assert cluster.status == status

    def test_kueue_learns_from_that_status_that_the_pods_are_ready(self) -> None:
        [step] = look(Cluster(spec=ELSEWHERE, status=RUNNING), stored(VIEW, **ADMITTED))
        assert isinstance(step, PatchObject)
        assert {one["type"]: one["status"] for one in step.change["status"]["conditions"]}["PodsReady"] == "True"

    def test_quota_is_given_back_when_the_job_has_stopped_there_or_was_not_asked_to(self) -> None:
        evicted = stored(VIEW, **ADMITTED, Evicted="True/Preempted/")
        assert evicted.workload is not None
        cluster = Cluster(spec=ELSEWHERE, status=RUNNING)
        for one in evicted.workload["status"]["conditions"]:
            one["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        assert look(cluster, evicted) == []
        ending = AdmissionStatus(gpus={"a": 2}, queue="q")
        cluster.status = RLJobStatus(attempt=2, phase=Phase.QUEUED, admission=ending)
        assert look(cluster, evicted) == []
        stopped = Cluster(spec=ELSEWHERE, status=RLJobStatus(phase=Phase.QUEUED, admission=AdmissionStatus(queue="q")))
        cluster.pass_time(300)
        for one_cluster in (stopped, cluster):
            [step] = look(one_cluster, evicted)
            assert isinstance(step, PatchObject)
            assert step.change["status"]["admission"] is None

    def test_a_suspension_makes_the_workload_inactive_while_the_job_runs_there(self) -> None:
        cluster = Cluster(spec=ELSEWHERE | {"suspend": True}, status=RUNNING)
        assert look(cluster, stored(VIEW, **ADMITTED)) == [SUSPENDED]
        assert look(cluster, inactive(stored(VIEW, **ADMITTED, PodsReady="True/a/"))) == []

    def test_nothing_starts_here_without_kueue(self) -> None:
        """The status that was copied says that the job is admitted."""
        cluster = Cluster(spec=ELSEWHERE, status=RUNNING)
        assert look(cluster, None) == []
        look(cluster, KueueView("q", mistake="Kueue is not installed in this cluster"))
        assert cluster.condition("Admitted")[1:] == ("QueueUnavailable", "Kueue is not installed in this cluster")

    @pytest.mark.parametrize("suspend", [False, True])
    @pytest.mark.parametrize("phase", [None, *Phase])
    def test_whatever_status_was_copied_and_whatever_kueue_says_nothing_starts_here(
        self, phase: Phase | None, suspend: bool
    ) -> None:
        evicted = stored(VIEW, **ADMITTED, Evicted="True/Preempted/")
        views = [stored(VIEW), stored(VIEW, **RESERVED), stored(VIEW, **ADMITTED), evicted, inactive(evicted)]
        for view in (None, VIEW, KueueView("q", mistake="gone"), *views, inactive(views[2], by="kubectl")):
            status = RUNNING.model_copy(update={"phase": phase, "start_time": "2026-01-01T00:00:00Z"})
            cluster = Cluster(spec=ELSEWHERE | {"suspend": suspend}, status=status)
            for _ in range(3):
                look(cluster, view)
                assert cluster.pods == {}

    def test_what_this_cluster_would_refuse_does_not_end_a_job_that_runs_there(self) -> None:
        """Its rules may have become stricter since."""
        refused = {"workers": {"replicas": 2, "gpusPerPod": 1, "template": {"spec": {"hostNetwork": True}}}}
        cluster = Cluster(spec=ELSEWHERE | refused | {"ttlSecondsAfterFinished": 0}, status=RUNNING)
        cluster.pass_time(3600)
        [ready] = look(cluster, stored(VIEW, **ADMITTED))
        [released] = look(cluster, stored(VIEW, **ADMITTED, Evicted="True/Preempted/"))
        assert isinstance(ready, PatchObject) and isinstance(released, PatchObject)
        assert released.change["status"]["admission"] is None
        cluster.spec |= {"suspend": True}
        assert look(cluster, stored(VIEW, **ADMITTED)) == [SUSPENDED]

    def test_the_deadline_of_a_job_is_kept_where_it_runs(self) -> None:
        status = RUNNING.model_copy(update={"start_time": "2026-01-01T00:00:00Z"})
        cluster = Cluster(spec=ELSEWHERE | {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}, status=status)
        cluster.pass_time(3600)
        [step] = look(cluster, stored(VIEW, **ADMITTED))
        assert isinstance(step, PatchObject)

    def test_a_job_that_has_ended_there_is_deleted_here_after_its_time_to_live(self) -> None:
        ended = RLJobStatus(phase=Phase.SUCCEEDED, completion_time="2026-01-01T00:00:00Z")
        cluster = Cluster(spec=ELSEWHERE | {"ttlSecondsAfterFinished": 60}, status=ended)
        assert look(cluster, stored(VIEW, **ADMITTED)) == []
        cluster.pass_time(60)
        [step] = look(cluster, stored(VIEW, **ADMITTED))
        assert isinstance(step, DeleteJob)


def prebuilt(owners: list[dict[str, Any]] | None = None, **found: str) -> KueueView:
    """A view with a Workload as MultiKueue makes it: with the pod sets of the job, and maybe an owner."""
    made = workload(make_job(), CONFIG, VIEW)
    metadata = {"name": "of-multikueue", "resourceVersion": "3", "ownerReferences": owners or []}
    return KueueView("team", "v1beta2", {**made, "metadata": metadata} | conditions(**found), is_prebuilt=True)


def owner(uid: str) -> dict[str, Any]:
    return {"uid": uid, "controller": True}


class TestWhereTheJobRuns:
    def test_the_job_takes_its_workload_over_before_it_starts(self) -> None:
        cluster = Cluster()
        [step] = look(cluster, prebuilt(**ADMITTED))
        assert isinstance(step, PatchObject)
        metadata = step.change["metadata"]
        assert (metadata["resourceVersion"], metadata["labels"]["longshore.dev/job"]) == ("3", "demo")
        assert [one["uid"] for one in metadata["ownerReferences"]] == ["job-uid"]
        assert cluster.pods == {}
        assert decide_admission(cluster.job, prebuilt([owner("job-uid")], **ADMITTED)).admitted

    def test_a_workload_that_somebody_changes_meanwhile_is_taken_over_at_the_next_look(self) -> None:
        cluster = Cluster()
        plan = reconcile(cluster.job, cluster.observed(kueue=prebuilt(**ADMITTED)), cluster.now, CONFIG)
        assert plan.requeue_at == cluster.now + timedelta(seconds=1)

    def test_the_workload_of_another_job_is_left_alone(self) -> None:
        cluster = Cluster()
        assert look(cluster, prebuilt([owner("another")], **ADMITTED)) == []
        assert cluster.condition("Admitted")[1] == "QuotaPending"

    def test_it_is_neither_made_nor_replaced_nor_changed_here(self) -> None:
        missing = KueueView("team", "v1beta2", is_prebuilt=True, mistake="there is no Workload")
        assert look(Cluster(), missing) == []
        changed = Cluster(spec={"workers": {"replicas": 1}}, generation=3)
        assert look(changed, prebuilt([owner("job-uid")])) == []

    def test_a_workload_that_asks_for_less_than_the_pods_need_admits_nobody(self) -> None:
        job = make_job()
        job.metadata["labels"] = PREBUILT
        assert unusable(job, CONFIG, prebuilt()) == ""
        assert unusable(make_job(workers={"replicas": 1}), CONFIG, prebuilt()) == ""
        assert "there is no Workload of-multikueue" in unusable(job, CONFIG, replace(prebuilt(), workload=None))
        for larger in ({"replicas": 3}, {"resources": {"memory": "64Gi"}}, {"gpusPerPod": 4}):
            job = make_job(workers={"replicas": 2, "gpusPerPod": 1} | larger)
            mistake = unusable(job, CONFIG, prebuilt())
            assert "the worker pods of the job need" in mistake
            view = replace(prebuilt([owner("job-uid")], **ADMITTED), mistake=mistake)
            assert decide_admission(job, view).reason is AdmittedReason.QUEUE_UNAVAILABLE

    def test_an_upgrade_that_asks_for_more_stops_no_job_that_runs(self) -> None:
        larger, view = {"workers": {"replicas": 2, "gpusPerPod": 4}}, prebuilt([owner("job-uid")], **ADMITTED)
        status = RLJobStatus(attempt=1, phase=Phase.RUNNING, observed_generation=1)
        assert unusable(make_job(status, **larger), CONFIG, view) == ""
        assert unusable(make_job(status, generation=2, **larger), CONFIG, view), "its user has changed it"
        for waits in (RLJobStatus(observed_generation=1), status.model_copy(update={"phase": Phase.SUSPENDED})):
            assert unusable(make_job(waits, **larger), CONFIG, view)
