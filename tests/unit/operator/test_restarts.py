"""Pods that end, crash or vanish: what starts again, what counts as a failure, and what ends the job."""

from datetime import timedelta

import pytest

from longshore.api.contract import ExitCode
from longshore.api.runtime_status import RuntimeActivity, RuntimeStatus
from longshore.api.status import Phase
from longshore_kube.times import parse_time
from longshore_operator.attempts import backoff
from longshore_operator.plan import Event
from tests.unit.operator.model import ALL_PODS, START, Cluster, running_cluster


class TestCoordinatorEnds:
    def test_exit_0_completes_the_job_and_stops_the_pods_that_still_run(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.SUCCEEDED, "reward 0.8")
        running.reconcile_until_stable()
        assert running.status.phase is Phase.SUCCEEDED
        assert running.condition("Complete") == ("True", "Finished", "reward 0.8")
        assert running.status.completion_time is not None
        assert running.names() == ["demo-coordinator"]
        assert running.status.gpus.rollout == 0

    @pytest.mark.parametrize(("others_stay", "left"), [(True, []), (False, ["demo-coordinator"])])
    def test_an_ended_pod_is_deleted_only_if_another_container_would_run_for_ever(
        self, running: Cluster, others_stay: bool, left: list[str]
    ) -> None:
        """Sidecars are ended by the kubelet, and a pod takes a moment to end after its last container."""
        running.exit("demo-coordinator", ExitCode.SUCCEEDED)
        running.change("demo-coordinator", others_run=True, others_stay=others_stay)
        running.reconcile_until_stable()
        assert (running.status.phase, running.names()) == (Phase.SUCCEEDED, left)

    @pytest.mark.parametrize("pod", ["demo-coordinator", "demo-worker-1", "demo-reward-0"])
    def test_a_users_mistake_fails_the_job_at_once_with_its_sentence(self, running: Cluster, pod: str) -> None:
        running.exit(pod, ExitCode.USER_ERROR, "data.path: no such file; check storage.claimName")
        running.reconcile_until_stable()
        assert running.status.phase is Phase.FAILED
        assert running.condition("Failed") == (
            "True", "UserError", "data.path: no such file; check storage.claimName"
        )  # fmt: skip
        assert running.status.failures == 0

    def test_a_job_that_cannot_continue_stays_suspended_until_it_is_corrected(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.CANNOT_CONTINUE, "algorithm.seed: it is 2 now and was 1")
        running.reconcile_until_stable()
        assert running.status.phase is Phase.SUSPENDED
        assert running.names() == []
        status, reason, message = running.condition("Suspended")
        assert (status, reason) == ("True", "CannotContinue")
        assert message.startswith("algorithm.seed: it is 2 now and was 1. The job keeps its checkpoints")
        running.pass_time(3600)
        running.reconcile_until_stable()
        assert (running.status.phase, running.status.attempt, running.condition("Suspended")[2]) == (
            Phase.SUSPENDED, 1, message
        )  # fmt: skip
        running.spec, running.generation = {"suspend": True}, 2
        running.reconcile_until_stable()
        assert running.condition("Suspended")[1] == "Suspended"
        running.spec, running.generation = {"suspend": False}, 3
        running.reconcile_until_stable()
        assert (running.status.attempt, running.condition("Suspended")[:2]) == (2, ("False", "Resumed"))

    def test_a_correction_that_the_operator_has_not_seen_suspended_continues_too(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.CANNOT_CONTINUE, "checkpoint.keep: a mistake")
        running.reconcile_until_stable()
        running.spec, running.generation = {"checkpoint": {"keep": 3}}, 4
        running.reconcile_until_stable()
        assert (running.status.phase, running.status.attempt) == (Phase.RUNNING, 2)

    @pytest.mark.parametrize("leaves_first", ["demo-worker-0", "demo-coordinator"])
    @pytest.mark.parametrize(
        ("activity", "worker_exit", "coordinator_exit", "phase"),
        [
            (RuntimeActivity.DONE, 0, 0, Phase.SUCCEEDED),
            ("Failing", ExitCode.INTERRUPTED, ExitCode.USER_ERROR, Phase.FAILED),
        ],
        ids=["done", "a user's mistake"],
    )
    def test_a_job_that_ends_shows_no_restart_while_its_pods_leave(
        self, running: Cluster, leaves_first: str, activity: str, worker_exit: int, coordinator_exit: int, phase: Phase
    ) -> None:
        running.report(RuntimeStatus(attempt=1, activity=activity))
        running.change(leaves_first, ready=False)
        running.step()
        assert running.status.phase is Phase.RUNNING
        running.exit("demo-worker-0", worker_exit)
        running.step()
        assert running.status.phase is Phase.RUNNING
        running.exit("demo-coordinator", coordinator_exit)
        running.step()
        assert running.status.phase is phase

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

    @pytest.mark.parametrize("what", ["evicted", "deleted", "gone"])
    def test_a_coordinator_ended_from_outside_without_progress_returns_later_each_time(
        self, running: Cluster, what: str
    ) -> None:
        """On a disk that it fills itself, a coordinator would drive other pods away from node after node."""
        waits = []
        for _ in range(8):
            if what == "evicted":
                running.change("demo-coordinator", ready=False, phase="Failed", reason="Evicted", exit_code=137)
            elif what == "deleted":
                running.change("demo-coordinator", ready=False, deleting=True)
            else:
                del running.pods["demo-coordinator"]
            running.step()
            assert running.status.restart_time is not None
            waits.append((parse_time(running.status.restart_time) - running.now).total_seconds())
            running.reconcile_until_stable()
            running.pass_time(361)
            running.reconcile_until_stable()
            assert running.status.phase is Phase.RUNNING
        assert waits == pytest.approx([0, 10, 20, 40, 80, 160, 320, 360], abs=1)
        assert (running.status.failures, running.status.interruptions) == (0, 8)
        running.report(RuntimeStatus(checkpoint_step=3))
        running.change("demo-coordinator", ready=False, phase="Failed", reason="Evicted", exit_code=137)
        running.reconcile_until_stable()
        assert (running.status.phase, running.status.interruptions) == (Phase.RUNNING, 1), "it has got further"

    @pytest.mark.parametrize(
        "message",
        [
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            'Container longshore exceeded its local ephemeral storage limit "1Gi". ',
            'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ',
        ],
    )
    def test_a_pod_that_is_evicted_because_it_exceeds_its_own_limit_has_failed(
        self, running: Cluster, message: str
    ) -> None:
        """The words are those of kubelets."""
        evicted = {"reason": "Evicted", "disruption": "TerminationByKubelet", "termination_message": message}
        running.change("demo-coordinator", ready=False, phase="Failed", exit_code=137, **evicted)
        running.step()
        assert (running.status.failures, running.status.interruptions) == (1, 0)
        assert running.condition("Ready")[2].startswith(f"demo-coordinator was evicted: {message}")

    @pytest.mark.parametrize("pod", ["demo-coordinator", "demo-worker-0"])
    @pytest.mark.parametrize(
        ("reason", "message"),
        [
            ("Evicted", "Pod was rejected: The node had condition: [DiskPressure]. "),
            ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ],
    )
    def test_a_pod_that_its_node_turns_away_waits_a_little_and_is_no_failure(
        self, running: Cluster, pod: str, reason: str, message: str
    ) -> None:
        """The words are those of kubelets."""
        refused = {"reason": reason, "termination_message": message}
        running.change(pod, ready=False, phase="Failed", exit_code=None, **refused)
        running.step()
        assert running.status.restart_time is not None
        assert (parse_time(running.status.restart_time) - running.now).total_seconds() == pytest.approx(10, abs=1)
        assert f"{pod} was rejected by its node ({reason})" in running.condition("Ready")[2]
        assert running.status.failures == 0

    def test_failures_count_from_zero_once_a_newer_checkpoint_was_written(self) -> None:
        """A job of a month may fail more often than a job that does not get further."""
        cluster = Cluster(spec={"backoffLimit": 1})
        cluster.reconcile_until_stable()
        for step in range(4):
            cluster.report(RuntimeStatus(checkpoint_step=step))
            cluster.exit("demo-coordinator", 139, "segmentation fault")
            cluster.step()
            assert (cluster.status.phase, cluster.status.failures) == (Phase.RESTARTING, 1)
            cluster.pass_time(3600)
            cluster.reconcile_until_stable()
        cluster.exit("demo-coordinator", 139, "segmentation fault")
        cluster.step()
        assert cluster.condition("Failed")[2].startswith(
            "2 failures since the checkpoint of step 3 are more than backoffLimit (1) allows; the last: "
        )

    @pytest.mark.parametrize(
        "reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "NodeAffinity", "TaintToleration"]
    )
    def test_pods_that_a_rebooted_node_rejects_are_not_counted_and_return_a_little_later(
        self, running: Cluster, reason: str
    ) -> None:
        """As often as nodes reboot in the life of a job."""
        for _ in range(9):
            running.change("demo-worker-0", phase="Failed", reason=reason, ready=False, exit_code=None)
            running.step()
            assert running.status.failures == 0
            assert f"was rejected by its node ({reason})" in running.condition("Ready")[2]
            running.pass_time(9.5)
            running.reconcile_until_stable()
            assert running.pods["demo-worker-0"].terminal, "the scheduler may choose the same node again"
            running.pass_time(1)
            running.reconcile_until_stable()
            assert running.status.phase is Phase.RUNNING
        running.change("demo-coordinator", phase="Failed", reason=reason, ready=False, exit_code=None)
        running.step()
        assert (running.status.phase, running.status.attempt, running.status.failures) == (Phase.RESTARTING, 2, 0)
        running.reconcile_until_stable()
        running.pass_time(11)
        running.reconcile_until_stable()
        assert (running.status.phase, running.status.attempt) == (Phase.RUNNING, 2)

    def test_a_vanished_coordinator_starts_a_new_attempt(self, running: Cluster) -> None:
        del running.pods["demo-coordinator"]
        running.reconcile_until_stable()
        assert (running.status.attempt, running.status.failures) == (2, 0)
        assert running.names() == ALL_PODS

    def test_a_coordinator_that_vanishes_before_anything_else_happens_is_missed(self) -> None:
        """Somebody may delete pods that wait for a node as soon as they are created."""
        cluster = Cluster()
        assert cluster.step().requeue_at == cluster.now, "a pass at once sees the pod"
        cluster.step()
        cluster.pods.clear()
        cluster.step()
        assert (cluster.status.attempt, cluster.status.interruptions) == (2, 1)

    def test_what_waits_does_not_come_back_earlier_because_somebody_removes_it(self, running: Cluster) -> None:
        """Clusters have tasks that delete failed pods."""
        running.exit("demo-worker-0", 134, "uncorrectable ECC error")
        running.step()
        del running.pods["demo-worker-0"]
        running.pass_time(9.5)
        running.reconcile_until_stable()
        assert "demo-worker-0" not in running.names()
        running.pass_time(0.5)
        running.reconcile_until_stable()
        assert (running.status.phase, running.names()) == (Phase.RUNNING, ALL_PODS)

    def test_while_a_crashed_pod_waits_another_that_was_evicted_is_replaced(self, running: Cluster) -> None:
        running.exit("demo-worker-0", 134, "uncorrectable ECC error")
        running.step()
        running.change("demo-worker-1", phase="Failed", ready=False, disruption="EvictionByEvictionAPI")
        running.reconcile_until_stable()
        assert running.pods["demo-worker-0"].terminal
        assert running.pods["demo-worker-1"].ready

    def test_a_worker_that_nodes_under_pressure_end_repeatedly_returns_later_each_time(self, running: Cluster) -> None:
        waits = []
        for _ in range(4):
            running.change("demo-worker-0", ready=False, phase="Failed", reason="Evicted", exit_code=137)
            running.step()
            assert running.status.restart_time is not None
            waits.append((parse_time(running.status.restart_time) - running.now).total_seconds())
            running.pass_time(361)
            running.reconcile_until_stable()
            assert running.status.phase is Phase.RUNNING
        assert waits == pytest.approx([0, 10, 20, 40], abs=1)
        assert (running.status.attempt, running.status.failures, running.status.interruptions) == (1, 0, 4)

    def test_the_event_of_an_attempt_that_waits_says_for_how_long_and_why(self, running: Cluster) -> None:
        for _ in range(3):
            running.delete("demo-coordinator")
            running.reconcile_until_stable()
            running.pass_time(361)
            running.reconcile_until_stable()
        assert [event.message.partition("; ")[2] for event in running.events if "attempt-" in event.key][1:] == [
            "attempt 2 starts",
            "attempt 3 starts in 10 s, after 2 interruptions without a newer checkpoint",
            "attempt 4 starts in 20 s, after 3 interruptions without a newer checkpoint",
        ]

    def test_after_a_suspension_checkpoints_count_from_the_beginning(self) -> None:
        """The output may have been cleared meanwhile."""
        cluster = running_cluster(backoffLimit=1)
        cluster.report(RuntimeStatus(attempt=1, checkpoint_step=500))
        cluster.exit("demo-coordinator", 139)
        cluster.step()
        assert cluster.status.counted_at_step == 500
        for suspend in (True, False):
            cluster.spec = {"backoffLimit": 1, "suspend": suspend}
            cluster.generation += 1
            cluster.reconcile_until_stable()
        for step in (50, 100, 150):
            cluster.report(RuntimeStatus(attempt=cluster.status.attempt, checkpoint_step=step))
            cluster.exit("demo-coordinator", 139)
            cluster.step()
            assert (cluster.status.phase, cluster.status.failures) == (Phase.RESTARTING, 1)
            cluster.pass_time(361)
            cluster.reconcile_until_stable()

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

    def test_pod_killed_twice_at_one_step_for_its_memory_ends_the_job(self) -> None:
        cluster = running_cluster(backoffLimit=6)
        for step, phase in ((3, Phase.RUNNING), (4, Phase.RUNNING), (4, Phase.FAILED)):
            cluster.report(RuntimeStatus(attempt=1, step=step))
            cluster.change(
                "demo-worker-0",
                phase="Failed",
                ready=False,
                exit_code=137,
                is_out_of_memory=True,
                memory_limit="4Gi",
                termination_message="the last line of its log",
            )
            cluster.step()
            cluster.pass_time(3600)
            cluster.reconcile_until_stable()
            assert cluster.status.phase is phase
        assert cluster.condition("Failed")[1:] == (
            "OutOfMemory",
            "demo-worker-0 was killed: it used more memory than its limit of 4Gi (OOMKilled); raise "
            "workers.resources.memory; it has happened twice at step 4",
        )

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


def avoided(cluster: Cluster, name: str) -> list[str]:
    """Nodes that a pod would rather not have."""
    affinity = cluster.manifests["Pod", name]["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return [node for term in terms for field in term["preference"]["matchFields"] for node in field["values"]]


class TestSickNodes:
    def crash(self, cluster: Cluster, node: str, name: str = "demo-worker-1") -> None:
        cluster.change(name, node=node)
        cluster.exit(name, 1, "CUDA error: uncorrectable ECC error")
        cluster.step()
        cluster.reconcile_until_stable()
        cluster.pass_time(361)
        cluster.reconcile_until_stable()

    def test_pods_that_are_created_after_a_crash_prefer_other_nodes(self, running: Cluster) -> None:
        self.crash(running, "sick")
        assert (avoided(running, "demo-worker-1"), avoided(running, "demo-worker-0")) == (["sick"], [])
        running.change("demo-coordinator", phase="Failed", reason="Evicted", ready=False)
        running.reconcile_until_stable()
        assert all(avoided(running, name) == ["sick"] for name in running.names())

    def test_the_last_three_are_remembered_also_beyond_a_checkpoint(self, running: Cluster) -> None:
        for step, node in enumerate(["a", "b", "c", "b", "d"], start=1):
            running.report(RuntimeStatus(attempt=running.status.attempt, checkpoint_step=step))
            self.crash(running, node)
        assert running.status.crash_nodes == ["c", "b", "d"]
        assert running.status.phase is Phase.RUNNING

    @pytest.mark.parametrize("message", ["", 'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". '])
    def test_an_eviction_says_nothing_about_a_node(self, running: Cluster, message: str) -> None:
        evicted = {"reason": "Evicted", "exit_code": None, "termination_message": message}
        running.change("demo-worker-0", phase="Failed", ready=False, node="full", **evicted)
        running.step()
        assert running.status.crash_nodes == []

    @pytest.mark.parametrize(("name", "code"), [("demo-worker-0", 137), ("demo-reward-0", 1), ("demo-coordinator", 1)])
    def test_what_would_happen_on_every_node_says_nothing_about_one(
        self, running: Cluster, name: str, code: int
    ) -> None:
        """A container that takes too much memory, and pods without GPUs."""
        running.change(name, node="healthy")
        running.exit(name, code)
        running.step()
        assert running.status.failures == 1
        assert running.status.crash_nodes == []

    def test_a_suspension_makes_the_job_forget_them(self, running: Cluster) -> None:
        self.crash(running, "sick")
        for suspend in (True, False):
            running.spec, running.generation = {"suspend": suspend}, running.generation + 1
            running.reconcile_until_stable()
        assert running.status.crash_nodes == []
        assert avoided(running, "demo-worker-1") == []
