"""What the operator decides, as a specification: one behaviour per test, on a cluster in memory."""

from dataclasses import replace
from datetime import timedelta

import pytest

from longshore.api.contract import ExitCode
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.config import OperatorConfig
from longshore_operator.plan import Apply, CreateOnce, CreatePod
from tests.unit.operator.model import ALL_PODS, START, Cluster


class TestStart:
    def test_the_first_pass_makes_children_and_the_coordinator_only(self) -> None:
        cluster = Cluster()
        plan = cluster.step()
        kinds = [action.key[0] for action in plan.actions if isinstance(action, Apply | CreateOnce)]
        assert sorted(kinds) == [
            "ConfigMap", "NetworkPolicy", "NetworkPolicy", "NetworkPolicy", "PersistentVolumeClaim", "Role",
            "RoleBinding", "Secret", "Secret", "Service", "ServiceAccount",
        ]  # fmt: skip
        assert cluster.names() == ["demo-coordinator"]
        assert cluster.status.attempt == 1
        assert cluster.status.phase is Phase.PENDING
        assert cluster.status.start_time == "2026-01-01T00:00:00Z"
        assert [event.reason for event in cluster.events] == ["Started"]

    def test_children_come_before_pods_in_a_plan(self) -> None:
        actions = Cluster().plan().actions
        first_pod = next(i for i, action in enumerate(actions) if isinstance(action, CreatePod))
        assert not any(isinstance(action, Apply | CreateOnce) for action in actions[first_pod:])

    def test_workers_wait_for_the_address_of_the_coordinator(self) -> None:
        cluster = Cluster()
        cluster.step()
        cluster.change("demo-coordinator", scheduled=True)
        cluster.step()
        assert cluster.names() == ["demo-coordinator"]
        cluster.change("demo-coordinator", phase="Running", ip="10.1.2.3")
        cluster.step()
        cluster.step()
        assert cluster.names() == ALL_PODS
        for name in ALL_PODS[1:]:
            container = cluster.manifests["Pod", name]["spec"]["containers"][0]
            assert {"name": "LONGSHORE_COORDINATOR_ADDRESS", "value": "10.1.2.3"} in container["env"]

    def test_a_job_runs_when_every_pod_is_ready(self, running: Cluster) -> None:
        assert running.condition("Ready") == ("True", "PodsReady", "all 4 pods are ready")
        assert running.condition("Scheduled")[0] == "True"
        assert (running.status.workers.desired, running.status.workers.ready) == (2, 2)
        assert running.status.gpus.rollout == 2
        assert running.status.restart_time is None

    def test_secrets_of_a_running_attempt_are_not_asked_for_again(self, running: Cluster) -> None:
        """A new operator remembers no child; a quota of Secrets that is used up refuses also what is there already."""
        running.children.clear()
        again = {action.key[0] for action in running.plan().actions if isinstance(action, Apply | CreateOnce)}
        assert "Service" in again and "Secret" not in again
        running.pods.clear()
        assert any(isinstance(action, CreateOnce) for action in running.plan().actions)

    def test_secrets_of_an_earlier_attempt_are_known_to_exist(self, running: Cluster) -> None:
        running.children.clear()
        running.pods.clear()
        assert {action.is_again for action in running.plan().actions if isinstance(action, CreateOnce)} == {True}
        assert {action.is_again for action in Cluster().plan().actions if isinstance(action, CreateOnce)} == {False}

    def test_the_assignment_is_written_when_the_job_starts_and_then_stays(self, running: Cluster) -> None:
        assert running.status.assignment.epoch == 1
        assert running.status.assignment.baseline.tp_size == 1

    def test_an_applied_plan_reconciles_to_nothing(self, running: Cluster) -> None:
        plan = running.plan()
        assert plan.actions == ()
        assert plan.status == running.status

    def test_the_coordinators_part_of_the_status_is_kept(self) -> None:
        cluster = Cluster(status=RLJobStatus(runtime=RuntimeStatus(step=7)))
        cluster.step()
        assert cluster.status.runtime == RuntimeStatus(step=7)


class TestChildren:
    def test_a_changed_spec_changes_the_config_map_alone(self) -> None:
        cluster = Cluster()
        cluster.apply(replace(cluster.plan(), status=None))
        cluster.pods.clear()
        cluster.spec = {"backoffLimit": 1}
        changed = [action.key for action in cluster.plan().actions if isinstance(action, Apply)]
        assert changed == [("ConfigMap", "demo-config")]

    def test_an_existing_ray_token_is_never_made_again(self, running: Cluster) -> None:
        assert not any(isinstance(action, CreateOnce) for action in running.plan().actions)
        del running.children["Service", "demo-pods"]
        assert [type(action) for action in running.plan().actions] == [Apply]

    def test_an_existing_claim_is_used_and_none_created(self) -> None:
        cluster = Cluster(spec={"storage": {"claimName": "models"}})
        cluster.step()
        assert ("PersistentVolumeClaim", "demo-storage") not in cluster.children
        volumes = cluster.manifests["Pod", "demo-coordinator"]["spec"]["volumes"]
        assert {"name": "storage", "persistentVolumeClaim": {"claimName": "models"}} in volumes

    def test_network_policies_can_be_switched_off(self) -> None:
        cluster = Cluster(config=OperatorConfig("runtime:1", network_policies=False))
        cluster.step()
        assert not any(kind == "NetworkPolicy" for kind, _ in cluster.children)

    def test_the_coordinator_may_watch_its_own_job_and_patch_its_status_and_no_more(self) -> None:
        cluster = Cluster()
        cluster.step()
        rules = cluster.manifests["Role", "demo-coordinator"]["rules"]
        group = {"apiGroups": ["longshore.dev"], "resourceNames": ["demo"]}
        assert rules == [
            group | {"resources": ["rljobs"], "verbs": ["get", "list", "watch"]},
            group | {"resources": ["rljobs/status"], "verbs": ["patch"]},
        ]

    def test_everything_is_owned_by_the_job(self, running: Cluster) -> None:
        for manifest in running.manifests.values():
            (owner,) = manifest["metadata"]["ownerReferences"]
            assert owner["uid"] == "job-uid"
            assert owner["controller"] is True
            assert owner["blockOwnerDeletion"] is True
            assert "finalizers" not in manifest["metadata"]


class TestSuspension:
    def test_suspending_stops_every_pod_and_resumption_is_a_new_attempt(self, running: Cluster) -> None:
        running.spec, running.generation = {"suspend": True}, 2
        running.reconcile_until_stable()
        assert running.names() == []
        assert running.status.phase is Phase.SUSPENDED
        assert running.status.start_time is None
        assert running.condition("Suspended")[0] == "True"
        assert running.status.observed_generation == 2

        running.pass_time(100)
        running.spec, running.generation = {"suspend": False}, 3
        running.reconcile_until_stable()
        assert running.names() == ALL_PODS
        assert running.status.attempt == 2
        assert running.status.start_time == "2026-01-01T00:01:40Z"
        assert running.condition("Suspended")[0] == "False"
        assert [event.reason for event in running.events] == ["Started", "Suspended", "Resumed"]

    def test_trainers_stay_until_the_coordinator_has_saved_its_checkpoint_and_ended(self, running: Cluster) -> None:
        running.spec, running.generation = {"suspend": True}, 2
        running.step()
        running.step()
        assert running.names(lambda pod: pod.deleting) == ["demo-coordinator", "demo-reward-0"]
        running.exit("demo-coordinator", ExitCode.INTERRUPTED)
        running.step()
        assert running.names(lambda pod: not (pod.deleting or pod.terminal)) == []

    def test_a_coordinator_that_never_ran_keeps_nothing(self, running: Cluster) -> None:
        running.change("demo-coordinator", phase="Pending")
        running.spec, running.generation = {"suspend": True}, 2
        running.step()
        assert running.names(lambda pod: not pod.deleting) == []

    def test_a_job_can_be_created_suspended(self) -> None:
        cluster = Cluster(spec={"suspend": True})
        cluster.reconcile_until_stable()
        assert cluster.names() == []
        assert cluster.status.attempt == 0
        cluster.spec = {}
        cluster.reconcile_until_stable()
        assert cluster.status.attempt == 1
        assert cluster.status.phase is Phase.RUNNING

    def test_a_suspension_that_nobody_saw_still_takes_the_new_spec(self, running: Cluster) -> None:
        running.spec, running.generation = {"workers": {"replicas": 1}}, 4
        running.reconcile_until_stable()
        assert running.status.attempt == 2
        assert running.names() == ["demo-coordinator", "demo-reward-0", "demo-worker-0"]
        assert running.status.failures == 0

    def test_a_new_tensor_parallel_size_is_a_new_assignment(self, running: Cluster) -> None:
        running.spec = {
            "workers": {"replicas": 2, "gpusPerPod": 2},
            "rollout": {"engine": {"tensorParallelSize": 2}},
        }
        running.generation = 4
        running.reconcile_until_stable()
        assert running.status.assignment.epoch == 2
        assert running.status.assignment.baseline.tp_size == 2
        labels = running.manifests["Pod", "demo-worker-0"]["metadata"]["labels"]
        assert labels["longshore.dev/tp-size"] == "2"
        assert labels["longshore.dev/role"] == "rollout"


class TestTime:
    def test_the_active_deadline_fails_the_job(self, running: Cluster) -> None:
        running.spec = {"activeDeadlineSeconds": 60}
        plan = running.step()
        assert plan.requeue_at == START + timedelta(seconds=60)
        running.pass_time(60)
        running.reconcile_until_stable()
        assert running.condition("Failed")[1] == "DeadlineExceeded"
        assert running.names() == []

    def test_a_finished_job_is_deleted_after_its_time_to_live(self, running: Cluster) -> None:
        running.spec = {"ttlSecondsAfterFinished": 30}
        running.exit("demo-coordinator", 0)
        plan = running.step()
        assert plan.requeue_at == START + timedelta(seconds=30)
        running.pass_time(29)
        running.reconcile_until_stable()
        assert not running.job_deleted
        running.pass_time(1)
        running.step()
        assert running.job_deleted

    def test_transition_times_move_only_with_the_status(self, running: Cluster) -> None:
        before = {c.type: c.last_transition_time for c in running.status.conditions}
        running.pass_time(500)
        running.generation = 2
        running.step()
        after = {c.type: c.last_transition_time for c in running.status.conditions}
        assert after == before
        assert {c.observed_generation for c in running.status.conditions} == {2}


class TestNamesake:
    def test_pods_of_a_deleted_job_of_the_same_name_are_never_taken_for_ones_own(self, running: Cluster) -> None:
        recreated = Cluster(pods={name: replace(pod, owner_uid="old-uid") for name, pod in running.pods.items()})
        recreated.exit("demo-coordinator", 0)
        plan = recreated.step()
        assert recreated.status.phase is Phase.PENDING
        assert not any(isinstance(action, CreatePod) for action in plan.actions)
        recreated.reconcile_until_stable()
        assert recreated.status.phase is Phase.RUNNING
        assert {pod.owner_uid for pod in recreated.pods.values()} == {"job-uid"}


class TestEnd:
    @pytest.mark.parametrize("code", [int(ExitCode.SUCCEEDED), int(ExitCode.USER_ERROR)])
    def test_an_ended_job_stays_ended(self, running: Cluster, code: int) -> None:
        running.exit("demo-coordinator", code)
        running.reconcile_until_stable()
        ended = running.status
        running.spec, running.generation = {"suspend": True}, 2
        running.pass_time(10**6)
        running.reconcile_until_stable()
        assert running.status.phase is ended.phase
        assert running.status.completion_time == ended.completion_time
        running.spec = {}
        running.reconcile_until_stable()
        assert running.status.attempt == 1
        assert running.names(lambda pod: not pod.terminal) == []
