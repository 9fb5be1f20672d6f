"""A job as a Workload of Kueue, and what its admission asks of pods: tables from the documented API."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.status import AdmissionStatus, RLJobStatus
from longshore_operator.context import PodPlacement
from longshore_operator.kueue.kueue_admission import decide_admission
from longshore_operator.kueue.kueue_client import queue_of
from longshore_operator.kueue.view import KueueView, Priority
from longshore_operator.kueue.workload import place_pod, placements, requested_pod_sets, workload
from longshore_operator.pod_sets import pod_set, requests
from longshore_operator.pods import worker_pod
from tests.unit.operator.kueue.workloads import CONFIG, ELASTIC, VIEW, assigned, inactive, stored
from tests.unit.operator.model import make_job
from tests.unit.operator.test_environment_pods import playing
from tests.unit.operator.test_judge_pools import judged

GPU = "nvidia.com/gpu"


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

    def test_each_environment_has_a_set_of_its_own(self) -> None:
        job = make_job(**playing())
        assert {one["name"]: one["count"] for one in requested_pod_sets(job, CONFIG)} == {
            "coordinator": 1, "worker": 2, "reward": 1, "environment-0": 2, "environment-1": 1,
        }  # fmt: skip
        names = [pod_set(job, Component.ENVIRONMENT, index) for index in range(3)]
        assert names == ["environment-0", "environment-0", "environment-1"]

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
