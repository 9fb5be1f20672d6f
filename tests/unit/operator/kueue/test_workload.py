"""A job as a Workload of Kueue, and what its admission asks of pods: tables from the documented API."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.status import AdmissionStatus, Phase, RLJobStatus
from longshore_kube.access import Access
from longshore_kube.reflector import Changed, Listed
from longshore_operator.config import OperatorConfig
from longshore_operator.context import PodPlacement
from longshore_operator.kube import KubeClient
from longshore_operator.kueue.kueue_admission import decide_admission
from longshore_operator.kueue.kueue_client import KueueClient, queue_of
from longshore_operator.kueue.view import KueueView, Priority
from longshore_operator.kueue.workload import place_pod, placements, requested_pod_sets, workload
from longshore_operator.plan import CreateObject, DeleteObject, PatchObject
from longshore_operator.pod_sets import pod_set, requests
from longshore_operator.pods import worker_pod
from longshore_operator.reconcile import reconcile, reject
from tests.unit.operator.model import Cluster, make_job
from tests.unit.operator.test_judge_pools import judged

CONFIG = OperatorConfig(runtime_image="runtime:1", kueue=True)
VIEW = KueueView("team", "v1beta2")
GPU = "nvidia.com/gpu"


def conditions(**by_type: str) -> dict[str, Any]:
    """A Workload with conditions, each given as `Status/Reason/message`."""
    found = [
        dict(zip(("status", "reason", "message"), text.split("/"), strict=True))
        | {"type": kind, "lastTransitionTime": "2025-12-31T00:00:00Z"}
        for kind, text in by_type.items()
    ]
    return {"status": {"conditions": found}}


def stored(view: KueueView, **by_type: str) -> KueueView:
    """A view with the Workload of the job, as the API server has it."""
    made = workload(make_job(), CONFIG, view)
    made["metadata"] |= {"uid": "workload-uid", "resourceVersion": "7"}
    return replace(view, workload=made | conditions(**by_type))


def inactive(view: KueueView, *, by: str = "") -> KueueView:
    """A view in which the Workload takes no part, because the job is suspended, or by somebody's will."""
    assert view.workload is not None
    metadata, spec = view.workload["metadata"], {**view.workload["spec"], "active": False}
    if by:
        managers = [{"manager": "longshore-operator", "fieldsV1": {"f:spec": {"f:queueName": {}}}}]
        managers.append({"manager": by, "fieldsV1": {"f:spec": {"f:active": {}}}})
        metadata = {**metadata, "managedFields": managers}
    else:
        metadata = {**metadata, "annotations": {**metadata["annotations"], "longshore.dev/suspended": "true"}}
    return replace(view, workload={**view.workload, "metadata": metadata, "spec": spec})


SUSPENDED, RESUMED = (
    PatchObject(
        "demo-rljob",
        "Workload@v1beta2",
        {"metadata": {"annotations": {"longshore.dev/suspended": mark}}, "spec": {"active": mark is None}},
    )
    for mark in ("true", None)
)

ELASTIC = {"replicas": 8, "minReplicas": 2, "gpusPerPod": 4}


def assigned(count: int) -> KueueView:
    """A view of an admitted Workload with so many workers."""
    view = stored(VIEW, Admitted="True/Admitted/", QuotaReserved="True/QuotaReserved/")
    assert view.workload is not None
    admission = {"podSetAssignments": [{"name": "coordinator", "count": 1}, {"name": "worker", "count": count}]}
    return replace(view, workload={**view.workload, "status": {**view.status, "admission": admission}})


class TestPodSets:
    def test_every_kind_of_pod_is_a_set_with_what_it_requests(self) -> None:
        job = make_job(reward={"pods": 1, "maxPods": 3})
        sets = {one["name"]: one for one in requested_pod_sets(job, CONFIG)}
        assert {name: one["count"] for name, one in sets.items()} == {"coordinator": 1, "worker": 2, "reward": 3}
        (container,) = sets["worker"]["template"]["spec"]["containers"]
        assert container["resources"] == {"requests": {GPU: "1", "cpu": "1", "memory": "4Gi"}, "limits": {GPU: "1"}}

    def test_trainers_and_each_judge_have_sets_of_their_own(self) -> None:
        job = make_job(**judged(), placement="Disaggregated", trainerWorkers={"replicas": 4})
        assert {one["name"]: one["count"] for one in requested_pod_sets(job, CONFIG)} == {
            "coordinator": 1, "worker": 2, "trainer": 4, "reward": 1, "judge-1": 2, "judge-2": 1,
        }  # fmt: skip
        assert [pod_set(job, Component.JUDGE, index) for index in range(3)] == ["judge-1", "judge-1", "judge-2"]

    def test_a_template_says_where_pods_may_run_and_nothing_that_kueue_has_no_use_for(self) -> None:
        job = make_job(workers={"nodeSelector": {"zone": "a"}, "gpusPerPod": 1})
        spec = next(one for one in requested_pod_sets(job, CONFIG) if one["name"] == "worker")["template"]["spec"]
        assert spec["nodeSelector"] == {"zone": "a"}
        assert not {"volumes", "hostname", "securityContext"} & spec.keys()
        assert "env" not in spec["containers"][0]

    def test_what_a_template_requests_for_a_whole_pod_or_claims_is_counted(self) -> None:
        claims = [{"name": "gpus", "resourceClaimTemplateName": "eight"}]
        more = {"resources": {"requests": {"cpu": "96"}, "limits": {"memory": "1Ti"}}, "resourceClaims": claims}
        job = make_job(workers={"gpusPerPod": 1, "template": {"spec": more}})
        spec = next(one for one in requested_pod_sets(job, CONFIG) if one["name"] == "worker")["template"]["spec"]
        assert (spec["resources"], spec["resourceClaims"]) == (more["resources"], claims)
        assert requests(spec)["cpu"] == 96
        assert requests(spec)["memory"] == 4 << 30, "containers request some"

    def test_kueue_may_admit_an_elastic_job_with_fewer_workers(self) -> None:
        sets = {one["name"]: one for one in requested_pod_sets(make_job(workers=ELASTIC), CONFIG)}
        assert (sets["worker"]["count"], sets["worker"]["minCount"]) == (8, 2)
        assert [name for name, one in sets.items() if "minCount" in one] == ["worker"]
        assert all("minCount" not in one for one in requested_pod_sets(make_job(), CONFIG))

    @pytest.mark.parametrize(
        ("annotation", "request_"),
        [
            ({"podset-required-topology": "example.com/rack"}, {"required": "example.com/rack"}),
            ({"podset-preferred-topology": "example.com/rack"}, {"preferred": "example.com/rack"}),
            ({"podset-unconstrained-topology": "true"}, {"unconstrained": True}),
        ],
    )
    def test_annotations_of_a_template_are_a_topology_request_of_its_pods_only(
        self, annotation: dict[str, str], request_: dict[str, Any]
    ) -> None:
        annotations = {f"kueue.x-k8s.io/{name}": value for name, value in annotation.items()}
        job = make_job(workers={"replicas": 2, "template": {"metadata": {"annotations": annotations}}})
        asked = {one["name"]: one.get("topologyRequest") for one in requested_pod_sets(job, CONFIG)}
        assert asked.pop("worker") == request_ | {"podIndexLabel": "longshore.dev/index"}
        assert set(asked.values()) == {None}


class TestWorkload:
    def test_it_belongs_to_the_job_and_is_inactive_while_the_job_is_suspended(self) -> None:
        made = workload(make_job(suspend=True), CONFIG, VIEW)
        assert made["apiVersion"] == "kueue.x-k8s.io/v1beta2"
        assert made["metadata"]["name"] == "demo-rljob"
        assert made["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
        assert (made["spec"]["queueName"], made["spec"]["active"]) == ("team", False)

    @pytest.mark.parametrize(
        ("version", "is_kueues", "fields"),
        [
            (
                "v1beta1",
                True,
                {"priorityClassName": "p", "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"},
            ),
            ("v1beta1", False, {"priorityClassName": "p", "priorityClassSource": "scheduling.k8s.io/priorityclass"}),
            (
                "v1beta2",
                True,
                {"priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "p"}},
            ),
            (
                "v1beta2",
                False,
                {"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "p"}},
            ),
        ],
    )
    def test_a_priority_class_has_the_fields_of_the_version(
        self, version: str, is_kueues: bool, fields: dict[str, Any]
    ) -> None:
        spec = workload(make_job(), CONFIG, KueueView("team", version, priority=Priority("p", 5, is_kueues)))["spec"]
        assert {name: value for name, value in spec.items() if name.startswith("priority")} == fields | {"priority": 5}


class TestAdmission:
    @pytest.mark.parametrize(
        ("found", "reason", "message"),
        [
            ({}, AdmittedReason.QUOTA_PENDING, "the job waits in queue team of Kueue"),
            (
                {"QuotaReserved": "False/Pending/2 more needed"},
                AdmittedReason.QUOTA_PENDING,
                "Kueue says: 2 more needed",
            ),
            (
                {"QuotaReserved": "False/Inadmissible/LocalQueue team doesn't exist"},
                AdmittedReason.QUEUE_UNAVAILABLE,
                "Kueue says: LocalQueue team doesn't exist. Set the label kueue.x-k8s.io/queue-name to",
            ),
            (
                {"QuotaReserved": "True/QuotaReserved/"},
                AdmittedReason.QUOTA_PENDING,
                "Kueue has reserved the quota and waits for admission checks",
            ),
            (
                {"QuotaReserved": "True/QuotaReserved/", "Admitted": "True/Admitted/"},
                AdmittedReason.ADMITTED,
                "Kueue admitted the job through queue team",
            ),
            (
                {"QuotaReserved": "True/QuotaReserved/", "Admitted": "True/Admitted/", "Evicted": "True/Preempted/why"},
                AdmittedReason.EVICTED,
                "Kueue evicted the job (Preempted): why",
            ),
            (
                {"QuotaReserved": "False/Pending/its turn comes", "Evicted": "True/Preempted/why"},
                AdmittedReason.QUOTA_PENDING,
                "Kueue says: its turn comes",
            ),
        ],
    )
    def test_the_conditions_of_the_workload_say_it(
        self, found: dict[str, str], reason: AdmittedReason, message: str
    ) -> None:
        made = decide_admission(make_job(), stored(VIEW, **found))
        assert (made.admitted, made.reason) == (reason is AdmittedReason.ADMITTED, reason)
        assert made.message.startswith(message)

    @pytest.mark.parametrize(
        ("found", "observed", "who"),
        [
            ({"DeactivationTarget": "True/RequeuingLimitExceeded/5 times"}, 1, "Kueue deactivated the job (Requeuing"),
            (
                {"Evicted": "True/DeactivatedDueToMaximumExecutionTimeExceeded/after 60 s"},
                1,
                "Kueue deactivated the job (MaximumExecutionTimeExceeded): after 60 s; to queue it again, set spec.act",
            ),
            ({"Evicted": "True/DeactivatedDueToRequeuingLimitExceeded/earlier"}, 0, "an-admin set spec.active of Work"),
            ({"Evicted": "True/Deactivated/"}, 1, "an-admin set spec.active of Workload demo-rljob to false; to"),
            ({"Admitted": "True/Admitted/"}, 1, "an-admin set spec.active of Workload demo-rljob to false; to queue"),
        ],
        ids=["decided", "evicted", "earlier", "by-hand", "not-yet-evicted"],
    )
    def test_the_job_says_who_deactivated_it(self, found: dict[str, str], observed: int, who: str) -> None:
        view = inactive(stored(VIEW, **found), by="an-admin")
        assert view.workload is not None
        view.workload["metadata"]["generation"] = 1
        for one in view.workload["status"]["conditions"]:
            one["observedGeneration"] = observed
        made = decide_admission(make_job(), view)
        assert (made.admitted, made.reason) == (False, AdmittedReason.DEACTIVATED)
        assert made.message.startswith(who)

    @pytest.mark.parametrize(("count", "extra", "gpus"), [(2, 0, 8), (5, 3, 20), (8, 6, 32)])
    def test_an_elastic_job_has_the_workers_that_kueue_has_assigned(self, count: int, extra: int, gpus: int) -> None:
        made = decide_admission(make_job(workers=ELASTIC), assigned(count))
        assert (made.num_extra_workers, made.gpus) == (extra, {GPU: gpus})
        assert (f"with {count} of 8 worker pods" in made.message) == (count < 8)

    def test_a_job_of_fixed_size_has_all_of_its_workers(self) -> None:
        assert decide_admission(make_job(), assigned(2)).num_extra_workers is None

    def test_an_elastic_job_keeps_its_size_if_kueue_is_removed(self) -> None:
        running = RLJobStatus(attempt=1, admission=AdmissionStatus(admitted=True, queue="team", workers=5))
        made = decide_admission(make_job(running, workers=ELASTIC), KueueView("team", mistake="gone"))
        assert (made.num_extra_workers, made.gpus) == (3, {GPU: 20})

    def test_a_mistake_is_reported(self) -> None:
        made = decide_admission(make_job(), KueueView("team", mistake="Kueue is not installed in this cluster"))
        assert (made.admitted, made.reason) == (False, AdmittedReason.QUEUE_UNAVAILABLE)

    def test_a_job_that_runs_goes_on_if_kueue_is_removed(self) -> None:
        running = RLJobStatus(attempt=1, admission=AdmissionStatus(admitted=True, queue="team"))
        assert decide_admission(make_job(running), KueueView("team", mistake="gone")).admitted

    def test_a_job_stays_in_the_queue_that_its_status_names(self) -> None:
        assert queue_of(make_job()) is None
        assert queue_of(make_job(RLJobStatus(admission=AdmissionStatus(queue="team")))) == "team"


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


class TestPlacement:
    def test_flavors_and_admission_checks_are_applied_by_pod_set(self) -> None:
        toleration = {"key": "spot", "operator": "Exists"}
        status = {
            "admission": {"podSetAssignments": [{"name": "worker", "flavors": {GPU: "h100", "cpu": "h100"}}]},
            "admissionChecks": [
                {
                    "podSetUpdates": [
                        {"name": "worker", "annotations": {"provisioned": "yes"}, "tolerations": [toleration]}
                    ]
                }
            ],
        }
        flavor = {"nodeLabels": {"gpu": "h100"}, "tolerations": [toleration]}
        view = replace(VIEW, workload={"status": status}, flavors={"h100": flavor})
        worker_placement = placements(view)["worker"]
        assert worker_placement == PodPlacement({"gpu": "h100"}, (toleration,), {}, {"provisioned": "yes"})
        pod = place_pod(worker_pod(make_job(), CONFIG, 1, 0, "10.0.0.1", 1), worker_placement)
        assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
        assert pod["spec"]["tolerations"].count(toleration) == 1
        assert pod["metadata"]["annotations"]["provisioned"] == "yes"
        assert pod["metadata"]["labels"]["longshore.dev/job"] == "demo"

    def test_a_pod_whose_node_kueue_chooses_waits_for_that_beside_its_other_gates(self) -> None:
        assignment = {"levels": ["example.com/rack"], "domains": [{"values": ["a"], "count": 2}]}
        assigned_sets = [{"name": "coordinator"}, {"name": "worker", "topologyAssignment": assignment}]
        found = {"metadata": {"name": "demo-rljob"}, "status": {"admission": {"podSetAssignments": assigned_sets}}}
        by_set = placements(replace(VIEW, workload=found))
        own = {"name": "example.com/licence"}
        job = make_job(workers={"template": {"spec": {"schedulingGates": [own]}}})
        pod = place_pod(worker_pod(job, CONFIG, 1, 0, "10.0.0.1", 1), by_set["worker"])
        assert pod["spec"]["schedulingGates"] == [own, {"name": "kueue.x-k8s.io/topology"}]
        labels = {"kueue.x-k8s.io/podset": "worker", "kueue.x-k8s.io/tas": "true", "longshore.dev/index": "0"}
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == "demo-rljob"
        free = place_pod(worker_pod(make_job(), CONFIG, 1, 0, "10.0.0.1", 1), by_set["coordinator"])
        assert "schedulingGates" not in free["spec"]


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
        """Otherwise it would look like one of the pods after an upgrade."""
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
