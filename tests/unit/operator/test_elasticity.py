"""Which GPU pods train and which size engines have: telemetry goes in, assignments and labels come out."""

from longshore.api.contract import ExitCode
from longshore.api.round_status import (
    RoundKind,
)
from longshore.api.runtime_status import RuntimeStatus
from longshore_operator.plan import LabelPod
from tests.unit.operator.assigned import (
    ADAPTIVE,
    COSTS,
    PAYS,
    STREAMED,
    after_rounds,
    at_milestone,
    job,
    reasons,
)
from tests.unit.operator.model import Cluster


class TestRejection:
    def test_engines_that_do_not_take_a_size_are_planned_for_as_they_are(self) -> None:
        cluster = job({"engine": {"parallelism": "Adaptive", "tensorParallelSize": 2}})
        cluster.report(after_rounds(0, 0, 0, 0, tp_size=2))
        assert cluster.status.assignment.baseline.tp_size_of(RoundKind.SHORT) == 1
        refused = after_rounds(0, 0, 0, 0, tp_size=2, rejected_epoch=2, rejected_reason="no", refused_tp_size=1)
        for _ in range(2):
            cluster.report(refused)
        assignment = cluster.status.assignment
        assert (assignment.epoch, assignment.baseline.tp_size_of(RoundKind.SHORT)) == (3, 2)
        assert assignment.reason == "engines keep tensor-parallel size 2: those of size 1 did not start"
        assert reasons(cluster) == ["Regrouping", "AssignmentRejected", "Regrouping"]
        cluster.report(after_rounds(0, 0, 0, 0, first=5, tp_size=2, rejected_epoch=2, refused_tp_size=1))
        assert cluster.status.assignment.epoch == 3, "which is not asked again before its cool-down is over"

    def test_it_is_reported_once_and_the_round_is_not_asked_again(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        refused = at_milestone(rejected_epoch=2, rejected_reason="round 1 has its batch already")
        for _ in range(2):
            cluster.report(refused)
        assert cluster.status.assignment.epoch == 2
        assert reasons(cluster) == ["Repurposing", "AssignmentRejected"]
        event = cluster.events[-1]
        assert event.type == "Warning"
        assert event.message == "assignment 2 was not carried out: round 1 has its batch already"

    def test_an_operator_that_forgot_its_report_gives_the_event_the_same_name(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        cluster.report(at_milestone(rejected_epoch=2, rejected_reason="too late"))
        cluster.reported_rejection = 0
        assert cluster.plan().actions == (cluster.events[-1],)


class TestAcknowledgement:
    def roles(self, cluster: Cluster) -> list[tuple[str | None, str | None]]:
        return [(pod.role, pod.tp_size) for pod in sorted(cluster.workers(), key=lambda pod: pod.index)]

    def test_labels_and_gpu_counts_follow_what_was_carried_out_and_not_what_was_asked(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        assert self.roles(cluster) == [("rollout", "1")] * 4
        assert (cluster.status.gpus.rollout, cluster.status.gpus.trainer) == (8, 0)
        cluster.report(at_milestone(applied_epoch=2, trainer_pods=[2, 3], tp_size=1))
        assert self.roles(cluster) == [("rollout", "1")] * 2 + [("trainer", "1")] * 2
        assert (cluster.status.gpus.rollout, cluster.status.gpus.trainer) == (4, 4)
        cluster.report(RuntimeStatus(attempt=1, step=1, applied_epoch=2, tp_size=1))
        assert self.roles(cluster) == [("rollout", "1")] * 4
        assert (cluster.status.gpus.rollout, cluster.status.gpus.trainer) == (8, 0)

    def test_the_label_of_the_size_follows_a_regroup(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(RuntimeStatus(attempt=1, tp_size=2))
        assert self.roles(cluster) == [("rollout", "2")] * 4

    def test_only_pods_whose_labels_are_wrong_are_labelled_and_the_uid_guards_each(self) -> None:
        cluster = job(STREAMED)
        given = RuntimeStatus(attempt=1, trainer_pods=[3], tp_size=1)
        cluster.status = cluster.status.model_copy(update={"runtime": given})
        labels = {"longshore.dev/role": "trainer", "longshore.dev/tp-size": "1"}
        uid = cluster.pods["demo-worker-3"].uid
        labelled = [action for action in cluster.plan().actions if isinstance(action, LabelPod)]
        assert labelled == [LabelPod("demo-worker-3", uid, labels)]

    def test_what_an_earlier_attempt_acknowledged_labels_nothing(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(applied_epoch=2, trainer_pods=[2, 3], tp_size=1))
        cluster.exit("demo-coordinator", ExitCode.INTERRUPTED)
        cluster.reconcile_until_stable()
        assert cluster.status.attempt == 2
        assert self.roles(cluster) == [("rollout", "1")] * 4
        assert cluster.status.gpus.trainer == 0

    def test_a_replaced_worker_gets_the_label_of_what_it_does(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(applied_epoch=2, trainer_pods=[2, 3], tp_size=1))
        cluster.delete("demo-worker-3")
        cluster.reconcile_until_stable()
        assert self.roles(cluster)[3] == ("trainer", "1")
        assert not any(isinstance(action, LabelPod) for action in cluster.plan().actions)

    def test_no_engines_yet_leave_the_label_of_the_size_alone(self) -> None:
        cluster = job(STREAMED)
        cluster.report(RuntimeStatus(attempt=1))
        assert self.roles(cluster) == [("rollout", "1")] * 4


class TestConditions:
    def unavailable(self, cluster: Cluster) -> dict[str, tuple[str, str, str]]:
        kinds = [c.type for c in cluster.status.conditions if c.type.endswith("Unavailable")]
        return {kind: cluster.condition(kind) for kind in kinds}

    def test_a_shape_that_can_do_what_was_asked_has_none(self) -> None:
        cluster = job({**STREAMED, **ADAPTIVE})
        cluster.report(after_rounds(0))
        assert self.unavailable(cluster) == {}

    def test_one_pod_cannot_be_halved(self) -> None:
        cluster = job(STREAMED, {"replicas": 1, "gpusPerPod": 8})
        assert self.unavailable(cluster) == {
            "RepurposeUnavailable": (
                "True",
                "NoPodToSpare",
                "spec.workers: one pod holds all GPUs, and pods are repurposed whole; "
                "every pod samples until the round ends",
            )
        }
        assert cluster.condition("Ready")[0] == "True", "the job runs without"

    def test_where_repurposing_costs_more_than_it_gains_the_figures_say_so(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(repurposing={RoundKind.SHORT: COSTS}))
        assert self.unavailable(cluster)["RepurposeUnavailable"] == (
            "True",
            "CostsMore",
            "spec.rollout.repurposing: pods continue to sample, because repurposing would make steps longer: in short "
            "rounds the step is expected to end 0.38 s later (rollout 0.8 s longer, training 0.42 s shorter)",
        )
        trial = COSTS.model_copy(update={"wanted": True, "trial": True})
        cluster.report(at_milestone(2, repurposing={RoundKind.SHORT: trial}))
        assert "RepurposeUnavailable" in self.unavailable(cluster), "a trial proves nothing yet"
        cluster.report(at_milestone(3, repurposing={RoundKind.SHORT: COSTS, RoundKind.LONG: PAYS}))
        assert self.unavailable(cluster) == {}, "it pays in some rounds"

    def test_trainers_with_pods_of_their_own_take_none_of_the_others(self) -> None:
        cluster = job(STREAMED, placement="Disaggregated", trainerWorkers={"replicas": 1, "gpusPerPod": 2})
        status, reason, message = self.unavailable(cluster)["RepurposeUnavailable"]
        assert (status, reason) == ("True", "Disaggregated")
        assert message.startswith("spec.placement: ")
        cluster.report(at_milestone())
        assert cluster.status.assignment.epoch == 1

    def test_they_stay_while_the_job_is_suspended_and_go_when_it_ends(self) -> None:
        cluster = job(STREAMED, {"replicas": 1, "gpusPerPod": 1})
        cluster.spec = cluster.spec | {"suspend": True}
        cluster.reconcile_until_stable()
        assert list(self.unavailable(cluster)) == ["RepurposeUnavailable"]
        cluster.spec = cluster.spec | {"suspend": False}
        cluster.reconcile_until_stable()
        cluster.exit("demo-coordinator", ExitCode.SUCCEEDED)
        cluster.reconcile_until_stable()
        assert self.unavailable(cluster) == {}
