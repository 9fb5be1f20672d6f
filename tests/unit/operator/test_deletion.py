"""A deleted job that a finalizer of somebody else holds: it gives back what it has, and does nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.status import AdmissionStatus
from longshore_operator.kueue.view import KueueView
from longshore_operator.plan import DeleteObject, DeletePod, Plan
from longshore_operator.reconcile import reconcile
from tests.unit.operator.kueue.workloads import VIEW, stored
from tests.unit.operator.model import ALL_PODS, Cluster

HELD = ("tenant.example/never",)


def plan_of(cluster: Cluster, *finalizers: str, kueue: KueueView | None = None, **spec: Any) -> Plan:
    """What a pass does once the job is deleted."""
    cluster.spec |= spec
    metadata = cluster.job.metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": list(finalizers)}
    job = cluster.job.model_copy(update={"metadata": metadata})
    return reconcile(job, replace(cluster.observed(), kueue=kueue), cluster.now, cluster.config)


def test_pods_of_a_deleted_job_are_deleted_with_their_grace(running: Cluster) -> None:
    plan = plan_of(running, *HELD)
    assert sorted(action.name for action in plan.actions if isinstance(action, DeletePod)) == ALL_PODS
    assert len(plan.actions) == len(ALL_PODS)
    running.apply(plan)
    assert plan_of(running, *HELD).actions == (), "those that are being deleted are waited for"
    reason, message = running.condition("Ready")[1:]
    assert reason == "BeingDeleted"
    assert message.endswith("its pods are being stopped; it goes when its finalizers are removed: tenant.example/never")


@pytest.mark.parametrize("spec", [{"suspend": True}, {"activeDeadlineSeconds": 1}, {"image": "other:2"}])
def test_a_deleted_job_obeys_no_change_of_its_spec(running: Cluster, spec: dict[str, Any]) -> None:
    running.apply(plan_of(running, *HELD))
    running.kubelet()
    running.pass_time(60)
    plan = plan_of(running, *HELD, **spec)
    assert plan.actions == ()
    assert plan.status is not None
    assert plan.status.attempt == 1


def test_an_admission_is_kept_until_the_pods_of_a_deleted_job_are_gone(running: Cluster) -> None:
    held = AdmissionStatus(admitted=True, gpus={"nvidia.com/gpu": 2})
    running.status = running.status.model_copy(update={"admission": held})
    running.apply(plan_of(running, *HELD))
    assert running.status.admission == held
    running.kubelet()
    running.apply(plan_of(running, *HELD))
    assert running.status.admission is None
    assert running.status.gpus.rollout == 0


def test_the_workload_of_a_deleted_job_goes_when_its_pods_are_gone(running: Cluster) -> None:
    view = stored(VIEW, QuotaReserved="True/QuotaReserved/", Admitted="True/Admitted/")
    running.apply(plan_of(running, *HELD, kueue=view))
    assert not any(isinstance(action, DeleteObject) for action in plan_of(running, *HELD, kueue=view).actions)
    running.kubelet()
    (action,) = plan_of(running, *HELD, kueue=view).actions
    assert isinstance(action, DeleteObject)
    assert action.uid == "workload-uid"


def test_pods_stay_when_a_job_is_deleted_and_its_dependants_are_orphaned(running: Cluster) -> None:
    assert plan_of(running, "orphan", *HELD) == Plan()


def test_pods_of_an_ended_job_that_is_deleted_go_too(running: Cluster) -> None:
    running.exit("demo-coordinator", 0)
    running.reconcile_until_stable()
    plan = plan_of(running, *HELD)
    assert (plan.actions, plan.status) == ((DeletePod("demo-coordinator", running.pods["demo-coordinator"].uid),), None)
