"""What becomes of a job that has to be admitted, on a cluster in memory."""

from dataclasses import replace

from longshore.api.reasons import AdmittedReason
from longshore.api.status import Phase
from longshore_operator.context import Admission
from longshore_operator.reconcile import reconcile
from tests.unit.operator.model import Cluster

WAITS = Admission(False, AdmittedReason.QUOTA_PENDING, "the job needs 2 GPUs, and 0 are free")
ADMITTED = Admission(True, AdmittedReason.ADMITTED, "the job may use 2 GPUs", {"nvidia.com/gpu": 2})
PREEMPTED = Admission(False, AdmittedReason.PREEMPTED, "a job of higher priority gets its GPUs", ADMITTED.gpus)


def look(cluster: Cluster, admission: Admission, times: int = 1) -> None:
    """Passes, and what the kubelet does in between."""
    for _ in range(times):
        observed = cluster.observed(admission=admission)
        cluster.apply(reconcile(cluster.job, observed, cluster.now, cluster.config))
        if times > 1:
            cluster.kubelet()


def running() -> Cluster:
    cluster = Cluster()
    look(cluster, ADMITTED, 9)
    assert cluster.status.phase is Phase.RUNNING
    return cluster


def test_a_job_that_waits_has_no_children_no_pods_and_no_attempt() -> None:
    cluster = Cluster()
    look(cluster, WAITS)
    assert (cluster.pods, cluster.children, cluster.status.attempt) == ({}, {}, 0)
    assert cluster.status.phase is Phase.QUEUED
    assert cluster.condition("Admitted") == ("False", "QuotaPending", WAITS.message)
    assert cluster.condition("Ready")[1] == "Queued"
    assert cluster.status.start_time is None
    assert cluster.events == []


def test_an_admitted_job_starts_and_its_status_says_what_it_holds() -> None:
    cluster = Cluster()
    look(cluster, WAITS)
    look(cluster, ADMITTED)
    assert cluster.names() == ["demo-coordinator"]
    assert cluster.status.admission is not None
    assert (cluster.status.admission.admitted, cluster.status.admission.gpus) == (True, {"nvidia.com/gpu": 2})
    assert cluster.condition("Admitted")[0] == "True"
    assert [event.reason for event in cluster.events] == ["Started", "Admitted"]


def test_a_preempted_job_holds_its_gpus_until_its_pods_are_gone_and_then_goes_on() -> None:
    cluster = running()
    look(cluster, PREEMPTED)
    assert cluster.names(lambda pod: not pod.deleting) == [pod.name for pod in cluster.workers()]
    del cluster.pods["demo-coordinator"]
    look(cluster, PREEMPTED)
    assert all(pod.deleting for pod in cluster.pods.values())
    assert cluster.status.phase is Phase.QUEUED
    assert cluster.status.admission is not None
    assert (cluster.status.admission.admitted, cluster.status.admission.gpus) == (False, {"nvidia.com/gpu": 2})
    cluster.pods.clear()
    look(cluster, WAITS)
    assert cluster.status.admission.gpus == {}
    look(cluster, ADMITTED)
    assert cluster.status.attempt == 2
    assert [event.reason for event in cluster.events] == ["Started", "Admitted", "Preempted", "Resumed", "Admitted"]


def test_a_job_with_other_settings_has_to_be_admitted_for_them() -> None:
    """It was suspended, changed and resumed between two looks of the operator."""
    cluster = running()
    cluster.spec, cluster.generation = {"workers": {"replicas": 8, "gpusPerPod": 8}}, 4
    look(cluster, ADMITTED)
    assert cluster.status.phase is Phase.QUEUED
    assert cluster.status.admission is not None
    assert (cluster.status.admission.admitted, cluster.status.admission.gpus) == (False, {"nvidia.com/gpu": 2})
    cluster.pods.clear()
    look(cluster, WAITS)
    assert (cluster.pods, cluster.status.admission.gpus) == ({}, {})
    look(cluster, replace(ADMITTED, gpus={"nvidia.com/gpu": 64}), 9)
    assert (cluster.status.phase, len(cluster.workers())) == (Phase.RUNNING, 8)


def test_failures_count_across_a_preemption_and_not_across_a_suspension() -> None:
    cluster = running()
    cluster.exit("demo-coordinator", 1)
    look(cluster, ADMITTED)
    assert cluster.status.failures == 1
    look(cluster, PREEMPTED, 3)
    look(cluster, ADMITTED)
    assert cluster.status.failures == 1
    cluster.spec = {"suspend": True}
    look(cluster, ADMITTED, 3)
    cluster.spec = {}
    look(cluster, WAITS)
    look(cluster, ADMITTED)
    assert cluster.status.failures == 0


def test_a_job_that_succeeds_while_it_is_preempted_has_succeeded() -> None:
    cluster = running()
    cluster.exit("demo-coordinator", 0)
    look(cluster, PREEMPTED)
    assert cluster.status.phase is Phase.SUCCEEDED


def test_waiting_does_not_count_towards_the_deadline() -> None:
    cluster = Cluster(spec={"activeDeadlineSeconds": 60})
    look(cluster, WAITS)
    cluster.pass_time(1000)
    look(cluster, ADMITTED)
    assert cluster.status.phase is Phase.PENDING


def test_an_operator_that_has_not_decided_yet_leaves_what_was_reported() -> None:
    cluster = Cluster()
    look(cluster, WAITS)
    before = cluster.status
    look(cluster, Admission(False, AdmittedReason.QUOTA_PENDING, ""))
    assert cluster.status == before


def test_a_job_that_need_not_be_admitted_says_nothing_about_it() -> None:
    cluster = Cluster()
    cluster.reconcile_until_stable()
    assert cluster.status.admission is None
    assert all(condition.type != "Admitted" for condition in cluster.status.conditions)


def test_the_status_says_the_place_in_the_queue_while_the_job_waits_there() -> None:
    cluster = Cluster()
    places = []
    for admission in (replace(WAITS, position=3), replace(WAITS, position=1), ADMITTED):
        look(cluster, admission)
        assert cluster.status.admission is not None
        places.append(cluster.status.admission.position)
    assert places == [3, 1, 0]
