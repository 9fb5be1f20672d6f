"""When a PodGroup is made and removed, and which pods join it, on a cluster in memory."""

from dataclasses import replace
from typing import Any

import pytest

from longshore.api.names import Component
from longshore.api.reasons import AdmittedReason
from longshore.api.status import ConditionType, Phase
from longshore_operator.context import Admission
from longshore_operator.plan import CreateObject, CreatePod, DeleteObject
from longshore_operator.reconcile import reconcile
from tests.unit.operator.kueue.workloads import assigned
from tests.unit.operator.model import Cluster, running_cluster

VOLCANO = {"scheduling": {"podGroup": "Volcano"}}
MISTAKE = "the cluster serves no PodGroups: install Volcano"


def running(**spec: Any) -> Cluster:
    return running_cluster(**VOLCANO | spec)


def min_member(cluster: Cluster) -> int:
    assert cluster.pod_group is not None
    return int(cluster.pod_group["spec"]["minMember"])


class TestMembers:
    @pytest.mark.parametrize(
        ("kind", "scheduler"), [("Volcano", "volcano"), ("SchedulerPlugins", None), ("Kubernetes", None)]
    )
    def test_every_pod_but_the_coordinator_joins_as_the_scheduler_wants_it(
        self, kind: str, scheduler: str | None
    ) -> None:
        cluster = Cluster(spec={"scheduling": {"podGroup": kind}})
        cluster.reconcile_until_stable()
        for name, pod in cluster.pods.items():
            manifest = cluster.manifests["Pod", name]
            groups = {
                "Volcano": manifest["metadata"]["annotations"].get("scheduling.k8s.io/group-name"),
                "SchedulerPlugins": manifest["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group"),
                "Kubernetes": manifest["spec"].get("schedulingGroup", {}).get("podGroupName"),
            }
            is_member = pod.component is not Component.COORDINATOR
            assert {name: found for name, found in groups.items() if found} == (
                {kind: "demo-rljob"} if is_member else {}
            )
            assert manifest["spec"].get("schedulerName") == (scheduler if is_member else None)

    def test_a_scheduler_of_another_name_can_be_chosen_and_a_template_does_not_undo_it(self) -> None:
        template = {
            "spec": {"schedulerName": "mine"},
            "metadata": {"annotations": {"scheduling.k8s.io/group-name": "x"}},
        }
        cluster = running(
            scheduling={"podGroup": "Volcano", "schedulerName": "batch"},
            workers={"replicas": 1, "gpusPerPod": 1, "template": template},
        )
        manifest = cluster.manifests["Pod", "demo-worker-0"]
        assert manifest["spec"]["schedulerName"] == "batch"
        assert manifest["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "demo-rljob"


class TestLifeOfTheGroup:
    def test_it_is_there_before_its_members(self) -> None:
        cluster = Cluster(spec=VOLCANO)
        plan = cluster.step()
        assert any(isinstance(action, CreateObject) for action in plan.actions)
        cluster.pod_group = None
        for _ in range(4):
            cluster.kubelet()
            plan = cluster.plan()
            assert not any(isinstance(one, CreatePod) and "worker" in one.name for one in plan.actions)
            cluster.apply(replace(plan, actions=()))
        assert plan.requeue_at is not None
        cluster.reconcile_until_stable()
        assert cluster.status.phase is Phase.RUNNING

    def test_members_wait_until_a_group_that_does_not_fit_is_replaced(self) -> None:
        cluster = Cluster(spec=VOLCANO)
        cluster.step()
        cluster.kubelet()
        cluster.kubelet()
        assert cluster.pod_group is not None
        cluster.pod_group["metadata"]["annotations"] = {}
        plan = cluster.plan()
        assert [type(one) for one in plan.actions if isinstance(one, CreatePod | DeleteObject)] == [DeleteObject]
        cluster.reconcile_until_stable()
        assert (cluster.status.phase, min_member(cluster)) == (Phase.RUNNING, 3)

    def test_attempts_share_it(self) -> None:
        cluster = running()
        before = cluster.pod_group
        cluster.exit("demo-coordinator", 1)
        cluster.step()
        cluster.pass_time(60)
        cluster.reconcile_until_stable()
        assert (cluster.status.attempt, cluster.status.phase) == (2, Phase.RUNNING)
        assert cluster.pod_group is before

    def test_another_size_while_suspended_makes_another_one(self) -> None:
        cluster = running()
        assert min_member(cluster) == 3
        cluster.spec["workers"] = {"replicas": 5, "gpusPerPod": 1}
        cluster.generation += 2
        # The operator did not see the suspension: pods of the old attempt go first.
        cluster.reconcile_until_stable()
        assert (cluster.status.phase, min_member(cluster)) == (Phase.RUNNING, 6)

    @pytest.mark.parametrize("spec", [{"suspend": True}, {"activeDeadlineSeconds": 1}], ids=["suspended", "ended"])
    def test_it_goes_with_the_last_member_when_the_job_stops(self, spec: dict[str, Any]) -> None:
        cluster = running()
        cluster.spec |= spec
        cluster.pass_time(5)
        cluster.step()
        assert cluster.pod_group is not None, "members still run"
        cluster.reconcile_until_stable()
        cluster.step()
        assert cluster.status.phase in (Phase.SUSPENDED, Phase.FAILED)
        assert cluster.pod_group is None

    def test_one_that_somebody_deletes_is_made_again(self) -> None:
        cluster = running()
        cluster.pod_group = None
        cluster.step()
        assert min_member(cluster) == 3
        assert cluster.status.phase is Phase.RUNNING


class TestSizeOfTheGang:
    def start(self, admission: Admission | None, workers: dict[str, int]) -> int:
        cluster = Cluster(spec=VOLCANO | {"workers": workers})
        observed = cluster.observed(admission=admission)
        cluster.apply(reconcile(cluster.job, observed, cluster.now, cluster.config))
        return min_member(cluster) - cluster.job.spec.reward.pods

    def test_workers_that_are_lent_do_not_keep_the_others_waiting(self) -> None:
        admitted = Admission(True, AdmittedReason.ADMITTED, "admitted", num_extra_workers=3)
        assert self.start(admitted, {"replicas": 8, "minReplicas": 2}) == 2

    def test_workers_that_kueue_has_assigned_start_together(self) -> None:
        workers: dict[str, Any] = {"replicas": 8, "minReplicas": 2, "gpusPerPod": 4}
        cluster = Cluster(spec=VOLCANO | {"workers": workers})
        plan = reconcile(cluster.job, cluster.observed(kueue=assigned(5)), cluster.now, cluster.config)
        cluster.apply(plan)
        assert min_member(cluster) == 5 + cluster.job.spec.reward.pods

    def test_where_nothing_admits_the_job_all_of_its_workers_start_together(self) -> None:
        assert self.start(None, {"replicas": 8, "minReplicas": 2}) == 8


class TestMistakes:
    def test_a_job_waits_without_pods_until_the_mistake_is_fixed(self) -> None:
        cluster = Cluster(spec=VOLCANO, pod_group_mistake=MISTAKE)
        plan = cluster.step()
        assert (cluster.pods, cluster.status.phase) == ({}, Phase.QUEUED)
        assert cluster.condition("Admitted") == ("False", "PodGroupUnavailable", MISTAKE)
        assert plan.requeue_at is not None
        assert (plan.requeue_at - cluster.now).total_seconds() == 30
        cluster.pod_group_mistake = ""
        cluster.reconcile_until_stable()
        assert cluster.status.phase is Phase.RUNNING
        assert cluster.status.condition(ConditionType.ADMITTED) is None

    def test_a_job_that_runs_goes_on_and_a_pod_that_is_lost_says_what_is_missing(self) -> None:
        cluster = running()
        cluster.pod_group, cluster.pod_group_mistake = None, MISTAKE
        cluster.step()
        assert cluster.status.phase is Phase.RUNNING
        cluster.delete("demo-worker-0")
        cluster.kubelet()
        cluster.step()
        assert "demo-worker-0" not in cluster.pods
        assert cluster.condition("Ready") == ("False", "PodGroupUnavailable", MISTAKE)
        cluster.pod_group_mistake = ""
        cluster.reconcile_until_stable()
        assert cluster.status.phase is Phase.RUNNING
