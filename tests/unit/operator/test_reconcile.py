"""What the operator decides, as a specification: one behaviour per test, on a cluster in memory."""

from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import ValidationError

from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.lifecycle import backoff
from longshore_operator.observed import ClaimView, Observed, PodView
from longshore_operator.plan import Apply, CreateOnce, CreatePod, DeletePod, Event, OperatorConfig
from longshore_operator.reconcile import reconcile, reject
from tests.unit.operator.model import CONFIG, START, Cluster, make_job

ALL_PODS = ["demo-coordinator", "demo-reward-0", "demo-worker-0", "demo-worker-1"]


@pytest.fixture
def running() -> Cluster:
    """A job whose pods are all ready."""
    cluster = Cluster()
    cluster.reconcile_until_stable()
    assert cluster.status.phase is Phase.RUNNING
    return cluster


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

    def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector(self) -> None:
        job = make_job()
        leaving = job.model_copy(update={"metadata": job.metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        plan = reconcile(leaving, Observed(), START, CONFIG)
        assert (plan.actions, plan.status) == ((), None)


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


class TestCoordinatorEnds:
    def test_exit_0_completes_the_job_and_stops_the_pods_that_still_run(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.SUCCEEDED, "reward 0.8")
        running.reconcile_until_stable()
        assert running.status.phase is Phase.SUCCEEDED
        assert running.condition("Complete") == ("True", "Finished", "reward 0.8")
        assert running.status.completion_time is not None
        assert running.names() == ["demo-coordinator"]
        assert running.status.gpus.rollout == 0

    def test_clean_pod_policy_all_deletes_ended_pods_too(self, running: Cluster) -> None:
        running.spec = {"cleanPodPolicy": "All"}
        running.exit("demo-coordinator", ExitCode.SUCCEEDED)
        running.reconcile_until_stable()
        assert running.names() == []

    @pytest.mark.parametrize("pod", ["demo-coordinator", "demo-worker-1", "demo-reward-0"])
    def test_a_users_mistake_fails_the_job_at_once_with_its_sentence(self, running: Cluster, pod: str) -> None:
        running.exit(pod, ExitCode.USER_ERROR, "data.path: no such file; check storage.claimName")
        running.reconcile_until_stable()
        assert running.status.phase is Phase.FAILED
        assert running.condition("Failed") == (
            "True", "UserError", "data.path: no such file; check storage.claimName"
        )  # fmt: skip
        assert running.status.failures == 0

    @pytest.mark.parametrize("leaves_first", ["demo-worker-0", "demo-coordinator"])
    def test_a_job_that_is_done_shows_no_restart_while_its_pods_leave(
        self, running: Cluster, leaves_first: str
    ) -> None:
        running.report(RuntimeStatus(attempt=1, activity=RuntimeActivity.DONE))
        running.change(leaves_first, ready=False)
        running.step()
        assert running.status.phase is Phase.RUNNING
        running.exit("demo-worker-0", 0)
        running.step()
        assert running.status.phase is Phase.RUNNING
        running.exit("demo-coordinator", 0)
        running.step()
        assert running.status.phase is Phase.SUCCEEDED

    @pytest.mark.parametrize("leaves_first", ["demo-worker-0", "demo-coordinator"])
    def test_a_job_that_fails_by_a_mistake_shows_no_restart_while_its_pods_leave(
        self, running: Cluster, leaves_first: str
    ) -> None:
        running.report(RuntimeStatus(attempt=1, activity="Failing"))
        running.change(leaves_first, ready=False)
        running.step()
        assert running.status.phase is Phase.RUNNING
        running.exit("demo-worker-0", ExitCode.INTERRUPTED)
        running.step()
        assert running.status.phase is Phase.RUNNING
        running.exit("demo-coordinator", ExitCode.USER_ERROR)
        running.step()
        assert running.status.phase is Phase.FAILED

    def test_a_coordinator_that_is_lost_although_it_was_done_shows_a_restart(self, running: Cluster) -> None:
        running.report(RuntimeStatus(attempt=1, activity=RuntimeActivity.DONE))
        running.exit("demo-coordinator", 1)
        running.step()
        assert (running.status.phase, running.status.attempt) == (Phase.RESTARTING, 2)

    def test_a_crash_is_counted_and_the_next_attempt_waits(self, running: Cluster) -> None:
        running.exit("demo-coordinator", 1, "CUDA error")
        plan = running.step()
        assert (running.status.attempt, running.status.failures) == (2, 1)
        assert running.status.phase is Phase.RESTARTING
        assert running.status.restart_time == "2026-01-01T00:00:10Z"
        reason, message = running.condition("Ready")[1:]
        assert reason == "CoordinatorFailed"
        assert "demo-coordinator exited with code 1: CUDA error" in message
        assert [event.reason for event in plan.actions if isinstance(event, Event)] == ["CoordinatorFailed"]

        running.kubelet()
        plan = running.step()
        assert running.names() == []
        assert plan.requeue_at == START + timedelta(seconds=10)
        assert running.status.phase is Phase.RESTARTING
        assert running.condition("Ready")[1:] == (reason, message), "the reason stays while the back-off lasts"
        running.pass_time(9.5)
        running.step()
        assert running.names() == []
        running.pass_time(0.5)
        running.reconcile_until_stable()
        assert running.names() == ALL_PODS
        assert running.status.phase is Phase.RUNNING
        assert running.status.failures == 1

    def test_all_pods_of_the_old_attempt_are_gone_before_the_new_one_starts(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.INTERRUPTED)
        running.step()
        running.pass_time(3600)
        for name in list(running.pods):
            running.step()
            assert {pod.attempt for pod in running.pods.values()} == {1}
            del running.pods[name]
        running.step()
        assert {pod.attempt for pod in running.pods.values()} == {2}

    @pytest.mark.parametrize(
        "what",
        [
            {"phase": "Failed", "exit_code": int(ExitCode.INTERRUPTED)},
            {"phase": "Failed", "exit_code": 137, "disruption": "EvictionByEvictionAPI"},
            {"phase": "Failed", "exit_code": None, "reason": "Evicted"},
            {"phase": "Failed", "exit_code": 143, "reason": "NodeShutdown"},
            {"deleting": True},
            {"deleting": True, "phase": "Failed", "exit_code": 143},
        ],
        ids=str,
    )
    def test_interruptions_start_a_new_attempt_and_are_not_counted(
        self, running: Cluster, what: dict[str, object]
    ) -> None:
        running.change("demo-coordinator", ready=False, **what)
        running.reconcile_until_stable()
        assert (running.status.attempt, running.status.failures) == (2, 0)
        assert running.status.phase is Phase.RUNNING

    def test_a_vanished_coordinator_starts_a_new_attempt(self, running: Cluster) -> None:
        del running.pods["demo-coordinator"]
        running.reconcile_until_stable()
        assert (running.status.attempt, running.status.failures) == (2, 0)
        assert running.names() == ALL_PODS

    def test_more_failures_than_the_limit_fail_the_job(self) -> None:
        cluster = Cluster(spec={"backoffLimit": 2})
        for _ in range(3):
            cluster.reconcile_until_stable()
            cluster.exit("demo-coordinator", 139, "segmentation fault")
            cluster.step()
            cluster.pass_time(3600)
        cluster.reconcile_until_stable()
        assert cluster.status.phase is Phase.FAILED
        assert cluster.condition("Failed")[1:] == (
            "BackoffLimitExceeded",
            "3 failures are more than backoffLimit (2) allows; "
            "the last: demo-coordinator exited with code 139: segmentation fault",
        )
        assert cluster.status.failures == 3
        assert cluster.names() == ["demo-coordinator"]

    def test_back_off_doubles_from_ten_seconds_up_to_six_minutes(self) -> None:
        waits = [backoff(failures).total_seconds() for failures in (1, 2, 3, 4, 5, 6, 7, 1000)]
        assert waits == [10, 20, 40, 80, 160, 320, 360, 360]


class TestPeersEnd:
    def test_a_deleted_worker_is_replaced_within_the_attempt(self, running: Cluster) -> None:
        running.delete("demo-worker-1")
        plan = running.step()
        assert [event.reason for event in plan.actions if isinstance(event, Event)] == ["PodLost"]
        assert running.plan().actions == ()
        assert running.condition("Ready")[0] == "False"
        running.reconcile_until_stable()
        assert running.names() == ALL_PODS
        assert (running.status.attempt, running.status.failures) == (1, 0)
        assert running.status.phase is Phase.RUNNING

    def test_an_evicted_reward_pod_is_replaced_at_once(self, running: Cluster) -> None:
        running.change("demo-reward-0", phase="Failed", ready=False, reason="Evicted")
        plan = running.step()
        assert [action.name for action in plan.actions if isinstance(action, DeletePod)] == ["demo-reward-0"]
        running.reconcile_until_stable()
        assert running.names() == ALL_PODS
        assert running.status.failures == 0

    def test_a_crashed_worker_is_counted_once_and_replaced_after_the_back_off(self, running: Cluster) -> None:
        running.exit("demo-worker-0", 1, "out of memory")
        running.reconcile_until_stable()
        assert (running.status.attempt, running.status.failures) == (1, 1)
        assert running.status.restart_time == "2026-01-01T00:00:10Z"
        assert running.pods["demo-worker-0"].terminal, "it stays for its log until it is replaced"
        assert "demo-worker-0 exited with code 1: out of memory" in running.condition("Ready")[2]
        running.pass_time(10)
        running.reconcile_until_stable()
        assert (running.status.attempt, running.status.failures) == (1, 1)
        assert running.status.phase is Phase.RUNNING
        assert not running.pods["demo-worker-0"].terminal

    def test_workers_that_crash_together_are_one_failure(self, running: Cluster) -> None:
        running.exit("demo-worker-0", 1)
        running.step()
        running.exit("demo-worker-1", 1)
        running.reconcile_until_stable()
        running.pass_time(10)
        running.reconcile_until_stable()
        assert running.status.failures == 1
        assert running.status.phase is Phase.RUNNING

    def test_a_worker_that_keeps_crashing_fails_the_job(self) -> None:
        cluster = Cluster(spec={"backoffLimit": 1})
        for _ in range(2):
            cluster.reconcile_until_stable()
            cluster.exit("demo-worker-0", 1)
            cluster.step()
            cluster.pass_time(3600)
        cluster.reconcile_until_stable()
        assert cluster.condition("Failed")[1] == "BackoffLimitExceeded"

    def test_a_worker_that_left_of_itself_is_replaced_slowly_and_not_counted(self, running: Cluster) -> None:
        running.exit("demo-worker-0", 0)
        running.reconcile_until_stable()
        assert running.pods["demo-worker-0"].terminal
        running.pass_time(10)
        running.reconcile_until_stable()
        assert not running.pods["demo-worker-0"].terminal
        assert running.status.failures == 0

    def test_a_stale_view_does_not_count_a_failure_twice(self, running: Cluster) -> None:
        running.exit("demo-worker-0", 1)
        stale = tuple(running.pods.values())
        running.step()
        running.pass_time(10)
        running.step()
        running.step(stale)
        assert running.status.failures == 1


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


class TestObstacles:
    def test_an_unschedulable_pod_shows_the_schedulers_words(self) -> None:
        cluster = Cluster()
        cluster.step()
        cluster.change("demo-coordinator", unschedulable="0/1 nodes are available: 1 Insufficient cpu.")
        cluster.step()
        assert cluster.condition("Scheduled") == (
            "False", "Unschedulable", "demo-coordinator: 0/1 nodes are available: 1 Insufficient cpu."
        )  # fmt: skip
        assert [event.reason for event in cluster.events] == ["Started", "Unschedulable"]
        assert cluster.plan().actions == ()

    def test_an_image_that_cannot_be_pulled_is_the_reason_for_not_being_ready(self) -> None:
        cluster = Cluster()
        cluster.step()
        cluster.change(
            "demo-coordinator",
            scheduled=True,
            waiting_reason="ImagePullBackOff",
            waiting_message="no such image",
        )
        cluster.step()
        assert cluster.condition("Ready") == ("False", "ImagePullBackOff", "demo-coordinator: no such image")

    @pytest.mark.parametrize(
        ("claim", "reason"),
        [
            (ClaimView("demo-storage", exists=False), "StorageNotFound"),
            (ClaimView("demo-storage", exists=True, phase="Pending"), "StoragePending"),
            (ClaimView("demo-storage", exists=True, phase="Lost"), "StorageLost"),
        ],
    )
    def test_storage_that_is_not_there_is_named(self, claim: ClaimView, reason: str) -> None:
        cluster = Cluster()
        cluster.step()
        cluster.apply(cluster.plan(claim=claim))
        assert cluster.condition("Ready")[1] == reason

    def test_what_the_api_server_refused_is_shown(self) -> None:
        cluster = Cluster()
        cluster.apply(cluster.plan(apply_error="pods is forbidden: exceeded quota: gpus"))
        assert cluster.condition("Ready") == ("False", "ApplyFailed", "pods is forbidden: exceeded quota: gpus")

    def test_pods_that_are_slow_to_end_are_named(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.INTERRUPTED)
        running.step()
        running.step()
        running.status = running.status.model_copy(update={"phase": Phase.STARTING})
        running.step()
        assert running.condition("Ready")[1] == "WaitingForPodsToEnd"

    @pytest.mark.parametrize("component", ["coordinator", "workers", "reward"])
    def test_a_template_that_escalates_is_refused(self, component: str) -> None:
        cluster = Cluster(spec={component: {"template": {"spec": {"hostNetwork": True}}}})
        cluster.reconcile_until_stable()
        assert cluster.condition("Failed")[1] == "TemplateRefused"
        assert f"spec.{component}.template.spec.hostNetwork" in cluster.condition("Failed")[2]
        assert cluster.names() == []

    @pytest.mark.parametrize("name", ["gvisor", "runc-unconfined"])
    def test_a_runtime_class_of_reward_pods_must_be_among_the_allowed_ones(self, name: str) -> None:
        config = OperatorConfig("runtime:1", runtime_classes=frozenset({"gvisor"}))
        cluster = Cluster(spec={"reward": {"runtimeClassName": name}}, config=config)
        cluster.reconcile_until_stable()
        if name == "gvisor":
            assert cluster.manifests["Pod", "demo-reward-0"]["spec"]["runtimeClassName"] == "gvisor"
            return
        assert cluster.condition("Failed")[1] == "TemplateRefused"
        assert cluster.condition("Failed")[2] == (
            "spec.reward.runtimeClassName: 'runc-unconfined' is not among the operator's allowed RuntimeClasses "
            "(chart value templates.runtimeClasses); choose another, or remove it"
        )
        assert cluster.names() == []

    def test_an_operator_that_allows_it_takes_such_a_template(self) -> None:
        cluster = Cluster(
            spec={"coordinator": {"template": {"spec": {"hostNetwork": True}}}},
            config=OperatorConfig("runtime:1", allow_privileged_templates=True),
        )
        cluster.reconcile_until_stable()
        assert cluster.manifests["Pod", "demo-coordinator"]["spec"]["hostNetwork"] is True

    def test_a_stored_spec_that_cannot_be_read_fails_with_the_sentence(self) -> None:
        stored = make_job().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        stored["algorithm"]["steps"] = 0
        with pytest.raises(ValidationError) as caught:
            RLJob.model_validate({"metadata": make_job().metadata, "spec": stored})
        running = PodView("demo-coordinator", "team", "u", "demo", Component.COORDINATOR, 0, 1, phase="Running")
        plan = reject(RLJobStatus(), 1, caught.value, (running,), START)
        assert plan.status is not None
        assert DeletePod("demo-coordinator", "u") in plan.actions
        failed = next(c for c in plan.status.conditions if c.type == "Failed")
        assert failed.reason == "InvalidSpec"
        assert failed.message.startswith("spec.algorithm.steps: ")
        recreated = reject(plan.status, 1, caught.value, (), START + timedelta(days=1))
        assert (recreated.actions, recreated.status) == ((), None)

    def test_a_stored_job_whose_name_children_cannot_have_fails_with_the_sentence(self) -> None:
        with pytest.raises(ValidationError) as caught:
            RLJob.model_validate({"metadata": make_job().metadata | {"name": "1a"}, "spec": make_job().spec})
        plan = reject(RLJobStatus(), 1, caught.value, (), START)
        assert plan.status is not None
        failed = next(c for c in plan.status.conditions if c.type == "Failed")
        assert failed.message.startswith("metadata.name must begin with a letter")


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


class TestLostNode:
    """Its pods stay `Terminating` until the node is back or removed: nobody knows whether they still run."""

    def test_no_second_coordinator_starts_and_the_job_names_the_pod_that_it_waits_for(self, running: Cluster) -> None:
        running.change("demo-coordinator", deleting=True, ready=False)
        for worker in running.workers():
            running.exit(worker.name, 0)  # without the coordinator's Ray head they end
        for _ in range(3):
            running.step()
            for name in running.names(lambda pod: pod.deleting and pod.name != "demo-coordinator"):
                del running.pods[name]
        assert running.names() == ["demo-coordinator"]
        assert running.status.attempt == 2
        assert "demo-coordinator" in running.condition("Ready")[2]

        del running.pods["demo-coordinator"]
        running.reconcile_until_stable()
        assert (running.status.phase, running.status.attempt, running.status.failures) == (Phase.RUNNING, 2, 0)

    def test_a_worker_is_replaced_when_it_is_gone_and_the_others_stay(self, running: Cluster) -> None:
        others = [name for name in ALL_PODS if name != "demo-worker-0"]
        before = {name: running.pods[name].uid for name in others}
        running.change("demo-worker-0", deleting=True, ready=False)
        lost = running.pods["demo-worker-0"].uid
        running.step()
        running.step()
        assert running.pods["demo-worker-0"].uid == lost
        assert "PodLost" in [event.reason for event in running.events]

        del running.pods["demo-worker-0"]
        running.reconcile_until_stable()
        assert running.pods["demo-worker-0"].ready
        assert {name: running.pods[name].uid for name in others} == before
        assert (running.status.attempt, running.status.failures) == (1, 0)
