"""Jobs in queues of Kueue: a stand-in on the embedded cluster, and the real Kueue where the cluster has it."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.operator.harness import GPU, Cluster, Jobs, Operator, eventually, job_spec
from tests.contract.operator.kueue import ON_LINUX, TEAM, Kueue, holds

_numbers = itertools.count(1)


@pytest.fixture
def kueue(cluster: Cluster, jobs: Jobs, kueue_operator: Operator) -> Iterator[Kueue]:
    """A queue with two GPUs for the namespace of the test."""
    made = Kueue(cluster, f"queue-{next(_numbers)}")
    made.create_queue(jobs.namespace, 2, ON_LINUX)
    yield made
    jobs.delete_all()
    made.delete_queue()


def wait_admitted(jobs: Jobs, name: str) -> dict[str, Any]:
    jobs.wait_condition("Admitted", "Admitted", name)
    eventually(f"{name} has its first pod", lambda: f"{name}-coordinator" in jobs.pods())
    return jobs.status(name)


def test_a_job_is_admitted_with_all_of_its_pods_and_placed_as_kueue_says(jobs: Jobs, kueue: Kueue) -> None:
    jobs.create("first", labels=TEAM, **job_spec())
    status = wait_admitted(jobs, "first")
    assert status["admission"] == {"admitted": True, "gpus": {GPU: 2}, "position": 0, "queue": "team"}
    sets = kueue.workload(jobs.namespace, "first")["spec"]["podSets"]
    assert {one["name"]: one["count"] for one in sets} == {"coordinator": 1, "worker": 2}
    pod = jobs.pods()["first-coordinator"]
    assert pod.spec.node_selector == ON_LINUX
    assert "team" in [toleration.key for toleration in pod.spec.tolerations]


def test_an_evicted_job_gives_its_quota_back_when_its_pods_are_gone_and_returns(jobs: Jobs, kueue: Kueue) -> None:
    jobs.create("first", labels=TEAM, **job_spec())
    wait_admitted(jobs, "first")
    jobs.create("urgent", labels=TEAM | {"kueue.x-k8s.io/priority-class": kueue.name}, **job_spec())
    wait_admitted(jobs, "urgent")
    assert jobs.gpu_pods("first") == {}
    assert jobs.status("first")["phase"] == "Queued"
    assert "Evicted" in jobs.event_reasons()
    assert kueue.condition(jobs.namespace, "first", "Requeued")["status"] == "True"
    jobs.delete("urgent")
    assert wait_admitted(jobs, "first")["attempt"] == 2


def test_a_job_that_an_administrator_deactivates_stops_until_a_person_activates_it(jobs: Jobs, kueue: Kueue) -> None:
    jobs.create("first", labels=TEAM, **job_spec())
    wait_admitted(jobs, "first")
    kueue.change(jobs.namespace, "first", active=False)
    jobs.wait_reported("first", "Deactivated", "set spec.active of Workload first-rljob to false; to queue it again")
    eventually("the event", lambda: "Deactivated" in jobs.event_reasons())
    jobs.create("second", labels=TEAM, **job_spec())
    wait_admitted(jobs, "second")
    eventually("its pods are gone", lambda: not jobs.gpu_pods("first"))
    jobs.delete("second")
    # The younger one gets the quota, although the older one would fit.
    jobs.create("urgent", labels=TEAM, **job_spec())
    wait_admitted(jobs, "urgent")
    kueue.change(jobs.namespace, "first", active=True)
    jobs.wait_reported("first", "QuotaPending", f"insufficient unused quota for {GPU}")
    jobs.delete("urgent")
    assert wait_admitted(jobs, "first")["attempt"] == 2


def test_a_job_that_kueue_deactivates_says_so_and_returns_once_suspended_and_resumed(jobs: Jobs, kueue: Kueue) -> None:
    jobs.create("first", labels={"kueue.x-k8s.io/queue-name": "later"}, **job_spec())
    jobs.wait_reported("first", "QueueUnavailable", "later doesn't exist")
    kueue.change(jobs.namespace, "first", maximumExecutionTimeSeconds=1)
    kueue.create_local_queue(jobs.namespace, "later")
    jobs.wait_reported("first", "Deactivated", "Kueue deactivated the job (MaximumExecutionTimeExceeded): ")
    eventually("the quota is free", lambda: not holds(kueue.workload(jobs.namespace, "first"), "QuotaReserved"))
    kueue.change(jobs.namespace, "first", maximumExecutionTimeSeconds=3600)
    jobs.patch({"suspend": True}, "first")
    jobs.wait_phase("Suspended", "first")
    jobs.patch({"suspend": False}, "first")
    assert wait_admitted(jobs, "first")["attempt"] == 2


def test_a_job_that_has_ended_leaves_its_quota_to_others(jobs: Jobs, kueue: Kueue) -> None:
    jobs.create("first", labels=TEAM, **job_spec(), activeDeadlineSeconds=2)
    wait_admitted(jobs, "first")
    jobs.create("second", labels=TEAM, **job_spec())
    jobs.wait_phase("Failed", "first")
    wait_admitted(jobs, "second")
    finished = kueue.condition(jobs.namespace, "first", "Finished")
    assert (finished["status"], finished["reason"]) == ("True", "Failed")


def test_a_job_uses_the_workload_that_was_made_for_it_and_makes_none(jobs: Jobs, kueue: Kueue) -> None:
    labels = {"kueue.x-k8s.io/prebuilt-workload-name": "prebuilt", "kueue.x-k8s.io/multikueue-origin": "elsewhere"}
    jobs.create("first", labels=TEAM | labels, **job_spec())
    jobs.wait_reported("first", "QueueUnavailable", "there is no Workload prebuilt, which the label")
    jobs.create("second", labels=TEAM, **job_spec())
    like = eventually("a Workload to copy", lambda: kueue.workload(jobs.namespace, "second"))
    owned = {"app.kubernetes.io/managed-by": "longshore", "longshore.dev/job": "first"}
    kueue.create_workload(jobs.namespace, "prebuilt", owned, like["spec"])
    jobs.delete("second")
    wait_admitted(jobs, "first")
    made = kueue.named(jobs.namespace, "prebuilt")
    job = jobs.get("first")
    assert job is not None
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert kueue.workload(jobs.namespace, "first") == {}
    jobs.delete("first")
    eventually("the Workload goes with its job", lambda: not kueue.named(jobs.namespace, "prebuilt"))


@pytest.mark.usefixtures("running_pods")
def test_a_partly_admitted_job_runs_with_its_part_and_kueue_learns_of_it(jobs: Jobs, kueue: Kueue) -> None:
    spec = job_spec(replicas=4)
    spec["workers"] |= {"minReplicas": 1}
    jobs.create("first", labels=TEAM, **spec)
    status = jobs.wait_phase("Running", "first")
    assert status["workers"] == {"desired": 2, "ready": 2}
    assert sorted(jobs.gpu_pods("first")) == ["first-coordinator", "first-worker-0", "first-worker-1"]
    eventually("PodsReady", lambda: kueue.condition(jobs.namespace, "first", "PodsReady").get("status") == "True")
