"""Which GPU pods train and which size engines have: telemetry goes in, assignments and labels come out."""

from typing import Any

import pytest

from longshore.api.contract import ExitCode
from longshore.api.round_status import (
    PodLoad,
    RepurposingBenefit,
    RolloutLoad,
    RolloutTimes,
    RoundKind,
    RoundStatus,
    RoundSummary,
)
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Overlay, PlannerStatus, RLJobStatus
from longshore_operator.plan import Event, LabelPod
from tests.unit.operator.model import Cluster

STREAMED = {"handover": "Streamed"}
ADAPTIVE = {"engine": {"parallelism": "Adaptive"}}
FOUR_PODS = {"replicas": 4, "gpusPerPod": 2}
CAPACITY_TOKENS = 1_000
PAYS = RepurposingBenefit(rollout_longer_s=1.0, training_shorter_s=3.0, wanted=True)
WHY = (
    "4 of 8 GPUs to training at 30 %: projected KV peak 50 %; the step is expected to end 2 s sooner (rollout 1 s "
    "longer, training 3 s shorter)"
)
COSTS = RepurposingBenefit(rollout_longer_s=0.8, training_shorter_s=0.42, wanted=False)


def job(rollout: dict[str, Any], workers: dict[str, Any] = FOUR_PODS, **spec: Any) -> Cluster:
    """A job with all its pods ready."""
    cluster = Cluster(spec={"rollout": rollout, "workers": workers, **spec})
    cluster.reconcile_until_stable()
    assert cluster.status.assignment.epoch == 1
    return cluster


def load(peak_tokens: int = 1_000, busy: tuple[int, ...] = (40, 30, 20, 10), gpus: int = 2) -> RolloutLoad:
    """Engines in as many pods as `busy` has tokens for."""
    pods = [
        PodLoad(pod=pod, gpus=gpus, kv_capacity_tokens=CAPACITY_TOKENS, running_tokens=tokens)
        for pod, tokens in enumerate(busy)
    ]
    return RolloutLoad(projected_kv_peak_tokens=peak_tokens, pods=pods)


def at_milestone(number: int = 1, attempt: int = 1, fraction: float = 0.3, **more: Any) -> RuntimeStatus:
    """What the coordinator tells while a round runs and pods may be repurposed."""
    this_round = RoundStatus(
        number=number, kind=RoundKind.SHORT, fraction_finished=fraction, load=more.pop("load", load())
    )
    known: dict[str, Any] = {"repurposing": {RoundKind.SHORT: PAYS}}
    return RuntimeStatus(attempt=attempt, step=number - 1, round=this_round, **known | more)


def after_rounds(*preemptions: int, first: int = 1, kind: RoundKind = RoundKind.SHORT, **more: Any) -> RuntimeStatus:
    """What the coordinator tells when rounds are over."""
    rounds = [RoundSummary(number=first + at, kind=kind, preemptions=count) for at, count in enumerate(preemptions)]
    known: dict[str, Any] = {"attempt": 1, "tp_sizes": [1, 2]}
    return RuntimeStatus(**{**known, **more}, step=first + len(rounds) - 1, recent_rounds=rounds[-16:])


def without_nulls(value: Any) -> Any:
    """As some API servers store what is applied."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


def reasons(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events if event.reason not in ("Started", "Suspended", "Resumed")]


class TestRepurposing:
    def test_half_of_the_gpus_with_the_fewest_tokens_train_when_what_runs_fits_the_others(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        assignment = cluster.status.assignment
        assert assignment.epoch == 2
        assert assignment.overlay == Overlay(round=1, attempt=1, trainer_pods=[2, 3])
        assert assignment.reason == WHY
        event = cluster.events[-1]
        assert (event.type, event.reason, event.message) == ("Normal", "Repurposing", assignment.reason)

    def test_the_same_telemetry_again_and_later_milestones_of_the_round_give_nothing(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        before = cluster.status.assignment
        cluster.report(at_milestone())
        cluster.report(at_milestone(fraction=0.45, load=load(10)))
        assert cluster.status.assignment == before
        assert reasons(cluster) == ["Repurposing"]

    def test_the_next_round_is_decided_anew_and_late_telemetry_of_the_one_before_gives_nothing(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(1))
        cluster.report(at_milestone(2, load=load(busy=(1, 2, 3, 4))))
        assignment = cluster.status.assignment
        assert (assignment.epoch, assignment.overlay) == (3, Overlay(round=2, attempt=1, trainer_pods=[0, 1]))
        cluster.report(at_milestone(1))
        assert cluster.status.assignment == assignment

    def test_nothing_is_written_while_the_projected_peak_is_too_high(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(load=load(1_801)))
        assert cluster.status.assignment.epoch == 1
        assert cluster.plan().actions == ()
        cluster.report(at_milestone(fraction=0.35, load=load(1_800)))
        assert cluster.status.assignment.epoch == 2

    def test_the_trigger_fixed_asks_for_neither_room_nor_benefit(self) -> None:
        cluster = job({**STREAMED, "repurposing": {"trigger": "Fixed"}})
        cluster.report(at_milestone(load=load(100_000), repurposing={RoundKind.SHORT: COSTS}))
        assert cluster.status.assignment.overlay is not None
        assert "RepurposeUnavailable" not in {condition.type for condition in cluster.status.conditions}

    @pytest.mark.parametrize(
        "known", [{}, {RoundKind.LONG: PAYS}, {RoundKind.SHORT: COSTS}], ids=["nothing", "of long rounds", "it costs"]
    )
    def test_pods_stay_unless_it_is_known_to_be_wanted_in_rounds_of_this_kind(
        self, known: dict[RoundKind, RepurposingBenefit]
    ) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(repurposing=known))
        assert cluster.status.assignment.overlay is None

    def test_the_users_limit_of_the_peak_counts(self) -> None:
        cluster = job({**STREAMED, "repurposing": {"maxKvPeak": 0.4}})
        cluster.report(at_milestone(load=load(1_000)))
        assert cluster.status.assignment.overlay is None

    def test_only_pods_with_trainer_replicas_are_taken(self) -> None:
        cluster = job(STREAMED, trainer={"dataParallelSize": 1})
        cluster.report(at_milestone())
        overlay = cluster.status.assignment.overlay
        assert overlay is not None and overlay.trainer_pods == [0]

    def test_pods_without_gpus_are_repurposed_too(self) -> None:
        cluster = job(STREAMED, {"replicas": 2, "gpusPerPod": 0})
        cluster.report(at_milestone(load=load(500, busy=(5, 6), gpus=0)))
        overlay = cluster.status.assignment.overlay
        assert overlay is not None and overlay.trainer_pods == [0]

    @pytest.mark.parametrize(
        "given",
        [
            RuntimeStatus(attempt=1),
            RuntimeStatus(attempt=1, round=RoundStatus(number=1, kind=RoundKind.SHORT, fraction_finished=0.3)),
            at_milestone(attempt=2),
            at_milestone().model_copy(update={"step": 1}),
            at_milestone(load=RolloutLoad(projected_kv_peak_tokens=0, pods=[])),
            at_milestone(load=load(busy=(1,))),
        ],
        ids=["no round", "no load", "another attempt", "a round that is over", "no engines", "engines of one pod"],
    )
    def test_telemetry_that_says_nothing_about_this_round_gives_nothing(self, given: RuntimeStatus) -> None:
        cluster = job(STREAMED)
        cluster.report(given)
        assert cluster.status.assignment.epoch == 1

    def test_engines_that_can_hold_nothing_are_full(self) -> None:
        cluster = job(STREAMED)
        empty = [PodLoad(pod=pod, gpus=2, kv_capacity_tokens=0, running_tokens=0) for pod in range(4)]
        cluster.report(at_milestone(load=RolloutLoad(projected_kv_peak_tokens=10, pods=empty)))
        assert cluster.status.assignment.epoch == 1

    @pytest.mark.parametrize(
        "rollout", [{}, {**STREAMED, "repurposing": {"trigger": "Never"}}], ids=["after the round", "never"]
    )
    def test_a_job_that_does_not_ask_for_it_keeps_its_pods(self, rollout: dict[str, Any]) -> None:
        cluster = job(rollout)
        cluster.report(at_milestone())
        assert cluster.status.assignment.epoch == 1

    def test_a_new_attempt_decides_for_itself(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(3))
        cluster.exit("demo-coordinator", ExitCode.INTERRUPTED)
        cluster.reconcile_until_stable()
        assert cluster.status.assignment.epoch == 2
        cluster.report(at_milestone(2, attempt=2))
        overlay = cluster.status.assignment.overlay
        assert overlay is not None and (overlay.round, overlay.attempt) == (2, 2)

    def test_a_suspended_job_is_asked_for_nothing(self) -> None:
        cluster = job(STREAMED)
        cluster.spec = cluster.spec | {"suspend": True}
        cluster.report(at_milestone())
        assert cluster.status.assignment.epoch == 1


class TestRegrouping:
    @pytest.mark.parametrize(
        ("switch_s", "regroups"), [(0.5, True), (1_000.0, False)], ids=["it pays", "it costs more than it brings"]
    )
    def test_with_a_profile_of_the_job_a_change_has_to_pay(self, switch_s: float, regroups: bool) -> None:
        seconds = {1: 50.0, 2: 60.0}
        kinds = {RoundKind.SHORT: seconds, RoundKind.LONG: seconds}
        times = RolloutTimes(switch_s=switch_s, preemption_s=0.0, round_s=kinds)
        cluster = job({"engine": {"parallelism": "Adaptive", "tensorParallelSize": 2}})
        cluster.report(after_rounds(0, 0, 0, 0, rollout_times=times))
        assert (reasons(cluster) == ["Regrouping"]) is regroups

    def test_the_first_size_is_the_best_by_the_profile(self) -> None:
        """Before any round; it is chosen once, and what it preempts then is compared with what the profile saw."""
        seconds = {1: 250.0, 2: 100.0}
        kinds = {RoundKind.SHORT: seconds, RoundKind.LONG: seconds}
        preemptions = {RoundKind.SHORT: {1: 500.0, 2: 100.0}}
        times = RolloutTimes(switch_s=10.0, preemption_s=0.01, round_s=kinds, preemptions=preemptions)
        cluster = job(ADAPTIVE, {"replicas": 2, "gpusPerPod": 4})
        given: dict[str, Any] = {"rollout_times": times, "tp_sizes": [1, 2]}
        cluster.report(after_rounds(**given))
        assignment = cluster.status.assignment
        assert assignment.baseline.tp_sizes == {RoundKind.SHORT: 2, RoundKind.LONG: 2}
        assert assignment.reason == "tensor-parallel sizes are the best by the job's profile"
        assert reasons(cluster) == ["Regrouping"]
        cluster.report(after_rounds(90, 90, **given))
        assert cluster.status.assignment == assignment

    def test_a_constant_overload_doubles_the_engines_of_a_job_without_a_profile(self) -> None:
        cluster = job(ADAPTIVE)
        rounds = [RoundSummary(number=at, kind=RoundKind.SHORT, preemptions=50_000, requests=400) for at in range(1, 5)]
        cluster.report(RuntimeStatus(attempt=1, tp_sizes=[1, 2], step=4, recent_rounds=rounds))
        assert cluster.status.assignment.baseline.tp_sizes == {RoundKind.SHORT: 2}

    def test_a_profile_that_lacks_a_size_is_of_no_use(self) -> None:
        times = RolloutTimes(switch_s=1_000.0, preemption_s=0.0, round_s={RoundKind.SHORT: {2: 60.0}})
        cluster = job({"engine": {"parallelism": "Adaptive", "tensorParallelSize": 2}})
        cluster.report(after_rounds(0, 0, 0, 0, rollout_times=times))
        assert reasons(cluster) == ["Regrouping"]

    def test_a_rise_in_preemptions_doubles_the_engines_of_its_kind_of_round(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        assignment = cluster.status.assignment
        assert assignment.epoch == 2
        assert assignment.baseline.tp_size == 1
        assert assignment.baseline.tp_sizes == {RoundKind.SHORT: 2}
        assert assignment.reason == "tensor-parallel size 1 to 2: 90 preemptions in a Short round, usually 30"
        event = cluster.events[-1]
        assert (event.type, event.reason, event.message) == ("Normal", "Regrouping", assignment.reason)

    def test_four_quiet_rounds_halve_them_and_the_default_needs_no_entry_of_its_own(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        cluster.report(after_rounds(*[0] * 7, first=4))
        assert cluster.status.assignment.epoch == 2, "the smaller size proved too small and must cool down"
        cluster.report(after_rounds(0, first=11))
        assert cluster.status.assignment.epoch == 3
        assert cluster.status.assignment.baseline.tp_sizes == {}

    def test_rounds_told_one_by_one_or_together_or_twice_give_the_same_sizes_and_memory(self) -> None:
        counts = (30, 30, 90, 40, 40, 0)
        one_by_one, together = job(ADAPTIVE), job(ADAPTIVE)
        for number in range(1, len(counts) + 1):
            for _ in range(2):
                one_by_one.report(after_rounds(*counts[:number]))
        together.report(after_rounds(*counts))
        assert one_by_one.status.planner == together.status.planner
        assert one_by_one.status.assignment == together.status.assignment

    def test_rounds_that_a_new_attempt_repeats_are_not_counted_twice(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 30))
        before = cluster.status.planner
        cluster.exit("demo-coordinator", ExitCode.INTERRUPTED)
        cluster.reconcile_until_stable()
        cluster.report(after_rounds(90, first=3, attempt=2))
        assert cluster.status.planner == before
        cluster.report(after_rounds(90, 90, first=3, attempt=2))
        assert cluster.status.assignment.baseline.tp_sizes == {RoundKind.SHORT: 2}

    def test_sizes_that_the_coordinator_has_not_told_are_waited_for(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90, tp_sizes=[]))
        assert (cluster.status.assignment.epoch, cluster.status.planner) == (1, PlannerStatus())
        cluster.report(after_rounds(30, 30, 90))
        assert cluster.status.assignment.epoch == 2

    def test_a_size_that_does_not_suit_the_model_is_not_taken(self) -> None:
        cluster = job(ADAPTIVE, {"replicas": 1, "gpusPerPod": 4})
        cluster.report(after_rounds(30, 30, 90, tp_sizes=[1, 4]))
        assert cluster.status.assignment.epoch == 1

    def test_each_kind_of_round_has_its_own_size(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        cluster.report(after_rounds(50, 50, 200, first=4, kind=RoundKind.LONG))
        assert cluster.status.assignment.baseline.tp_sizes == {RoundKind.SHORT: 2, RoundKind.LONG: 2}

    def test_fixed_parallelism_never_regroups(self) -> None:
        cluster = job({})
        cluster.report(after_rounds(30, 30, 900))
        assert (cluster.status.assignment.epoch, cluster.status.planner) == (1, None)

    def test_one_telemetry_that_asks_for_both_gives_one_assignment_with_both(self) -> None:
        cluster = job({**STREAMED, **ADAPTIVE})
        ended = after_rounds(30, 30, 90)
        cluster.report(at_milestone(4, recent_rounds=ended.recent_rounds, tp_sizes=[1, 2]))
        assignment = cluster.status.assignment
        assert assignment.epoch == 2
        assert assignment.baseline.tp_sizes == {RoundKind.SHORT: 2}
        assert assignment.overlay is not None and assignment.overlay.round == 4
        assert assignment.reason.startswith("tensor-parallel size 1 to 2") and "; 4 of 8 GPUs" in assignment.reason
        assert reasons(cluster) == ["Regrouping", "Repurposing"]

    def test_a_regroup_does_not_carry_an_overlay_whose_round_is_over(self) -> None:
        cluster = job({**STREAMED, **ADAPTIVE})
        cluster.report(at_milestone(3))
        cluster.report(after_rounds(30, 30, 90))
        assert (cluster.status.assignment.epoch, cluster.status.assignment.overlay) == (3, None)

    def test_a_regroup_beside_a_running_round_keeps_its_overlay(self) -> None:
        cluster = job({**STREAMED, **ADAPTIVE})
        cluster.report(at_milestone(4))
        overlay = cluster.status.assignment.overlay
        cluster.report(after_rounds(30, 30, 90, attempt=0))
        assert cluster.status.assignment.epoch == 3
        assert cluster.status.assignment.overlay == overlay
        cluster.report(at_milestone(4))
        assert cluster.status.assignment.epoch == 3

    def test_an_api_server_that_drops_fields_without_a_value_costs_no_memory(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30))
        planner = cluster.status.planner
        assert planner is not None
        stored = PlannerStatus(round=planner.round, state=without_nulls(planner.state))
        cluster.status = cluster.status.model_copy(update={"planner": stored})
        cluster.report(after_rounds(30, 30, 90))
        assert cluster.status.assignment.baseline.tp_sizes == {RoundKind.SHORT: 2}

    def test_a_memory_that_cannot_be_read_is_begun_anew_and_told(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        state = {"order": ["Medium"], "kinds": {}}
        planner = PlannerStatus(round=3, state=state)
        cluster.status = cluster.status.model_copy(update={"planner": planner})
        cluster.report(after_rounds(30, first=4))
        assert cluster.status.assignment.baseline.tp_sizes == {}
        assert cluster.status.planner is not None and cluster.status.planner.state != state
        assert "PlannerReset" in reasons(cluster)


class TestSpecChange:
    def change(self, cluster: Cluster, **spec: Any) -> None:
        cluster.spec = cluster.spec | {"suspend": True}
        cluster.reconcile_until_stable()
        cluster.spec = cluster.spec | spec
        cluster.reconcile_until_stable()

    def test_a_new_size_resets_baseline_and_planner_and_old_rounds_say_nothing_about_it(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        self.change(cluster, rollout={"engine": {"parallelism": "Adaptive", "tensorParallelSize": 2}})
        assignment = cluster.status.assignment
        assert (assignment.epoch, assignment.reason) == (3, "tensorParallelSize changed")
        assert (assignment.baseline.tp_size, assignment.baseline.tp_sizes) == (2, {})
        assert cluster.status.planner == PlannerStatus(round=3)

    @pytest.mark.parametrize(
        "spec",
        [
            {"rollout": {}},
            {"rollout": {**ADAPTIVE, "strategy": "Synchronous"}},
            {"workers": {"replicas": 4, "gpusPerPod": 3}},
        ],
        ids=["fixed", "another strategy", "other pods"],
    )
    def test_sizes_that_no_longer_fit_the_spec_are_dropped(self, spec: dict[str, Any]) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        self.change(cluster, **spec)
        assert cluster.status.assignment.epoch == 3
        assert cluster.status.assignment.reason == "the spec changed"
        assert cluster.status.assignment.baseline.tp_sizes == {}

    def test_another_change_keeps_sizes_and_memory(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        before = cluster.status.assignment, cluster.status.planner
        self.change(cluster, reward={"pods": 2})
        assert (cluster.status.assignment, cluster.status.planner) == before


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

    def test_it_is_told_once_and_the_round_is_not_asked_again(self) -> None:
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

    def test_an_operator_that_forgot_that_it_told_gives_the_event_the_same_name(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        cluster.report(at_milestone(rejected_epoch=2, rejected_reason="too late"))
        cluster.reported_rejection = 0
        assert cluster.plan().actions == (cluster.events[-1],)

    def test_that_of_an_older_assignment_is_no_news(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(1))
        cluster.report(at_milestone(2))
        cluster.report(at_milestone(2, rejected_epoch=2, rejected_reason="too late"))
        assert reasons(cluster) == ["Repurposing", "Repurposing"]


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


class TestRepurposed:
    """The condition, and the event that comes with it."""

    ACKNOWLEDGED = at_milestone(applied_epoch=2, trainer_pods=[2, 3], tp_size=1)
    WHY = WHY

    def overlaid(self) -> Cluster:
        """A job whose coordinator has carried out an overlay."""
        cluster = job(STREAMED)
        cluster.report(at_milestone())
        cluster.report(self.ACKNOWLEDGED)
        return cluster

    def shown(self, cluster: Cluster) -> tuple[str, str, str] | None:
        known = any(condition.type == "Repurposed" for condition in cluster.status.conditions)
        return cluster.condition("Repurposed") if known else None

    def test_what_was_asked_for_and_not_acknowledged_shows_nothing(self) -> None:
        cluster = job(STREAMED)
        assert self.shown(cluster) is None
        cluster.report(at_milestone())
        assert self.shown(cluster) is None
        cluster.report(at_milestone(rejected_epoch=2, rejected_reason="too late"))
        assert self.shown(cluster) is None

    def test_an_acknowledged_overlay_shows_why_until_its_round_is_over(self) -> None:
        cluster = self.overlaid()
        assert self.shown(cluster) == ("True", "Acknowledged", self.WHY)
        cluster.report(RuntimeStatus(attempt=1, step=1, applied_epoch=2, tp_size=1))
        message = "the overlay is over: it holds for the rest of one round of one attempt"
        assert self.shown(cluster) == ("False", "OverlayEnded", message)

    def test_one_event_tells_of_every_acknowledgement(self) -> None:
        cluster = self.overlaid()
        event = cluster.events[-1]
        assert (event.type, event.reason, event.message) == ("Normal", "Repurposed", self.WHY)
        cluster.report(self.ACKNOWLEDGED)
        assert reasons(cluster) == ["Repurposing", "Repurposed"]
        cluster.report(at_milestone(2, applied_epoch=2, tp_size=1))
        cluster.report(at_milestone(2, applied_epoch=3, trainer_pods=[2, 3], tp_size=1))
        assert reasons(cluster) == ["Repurposing", "Repurposed"] * 2
        assert len({event.key for event in cluster.events if event.reason == "Repurposed"}) == 2

    def test_a_later_assignment_does_not_change_why(self) -> None:
        cluster = self.overlaid()
        later = cluster.status.assignment.model_copy(update={"epoch": 3, "reason": "something else"})
        cluster.status = cluster.status.model_copy(update={"assignment": later})
        cluster.reconcile_until_stable()
        assert self.shown(cluster) == ("True", "Acknowledged", self.WHY)

    def test_an_operator_that_never_saw_the_assignment_acknowledged_names_the_pods(self) -> None:
        cluster = job(STREAMED)
        cluster.report(at_milestone(applied_epoch=9, trainer_pods=[3, 2], tp_size=1))
        assert self.shown(cluster) == (
            "True",
            "Acknowledged",
            "in training for the rest of the round: worker pods 2, 3",
        )

    def test_an_overlay_ends_with_its_attempt(self) -> None:
        cluster = self.overlaid()
        cluster.exit("demo-coordinator", ExitCode.INTERRUPTED)
        cluster.reconcile_until_stable()
        assert cluster.condition("Repurposed")[:2] == ("False", "OverlayEnded")

    def test_an_overlay_ends_when_the_job_is_suspended_and_a_finished_job_shows_none(self) -> None:
        cluster = self.overlaid()
        cluster.spec = cluster.spec | {"suspend": True}
        cluster.reconcile_until_stable()
        assert cluster.condition("Repurposed")[:2] == ("False", "OverlayEnded")
        cluster = self.overlaid()
        cluster.exit("demo-coordinator", ExitCode.SUCCEEDED)
        cluster.reconcile_until_stable()
        assert self.shown(cluster) is None


class TestConditions:
    def unavailable(self, cluster: Cluster) -> dict[str, tuple[str, str, str]]:
        kinds = [c.type for c in cluster.status.conditions if c.type.endswith("Unavailable")]
        return {kind: cluster.condition(kind) for kind in kinds}

    def test_a_shape_that_can_do_what_was_asked_has_none(self) -> None:
        cluster = job({**STREAMED, **ADAPTIVE})
        cluster.report(after_rounds(0))
        assert self.unavailable(cluster) == {}

    @pytest.mark.parametrize("gpus", [0, 1])
    def test_nothing_is_said_about_what_was_not_asked_for(self, gpus: int) -> None:
        assert self.unavailable(job({}, {"replicas": 1, "gpusPerPod": gpus})) == {}

    def test_one_pod_cannot_be_halved(self) -> None:
        cluster = job(STREAMED, {"replicas": 1, "gpusPerPod": 8})
        assert self.unavailable(cluster) == {
            "RepurposeUnavailable": (
                "True",
                "NoPodToSpare",
                "spec.workers: one pod holds all GPUs, and pods are handed over whole; "
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

    @pytest.mark.parametrize("gpus", [0, 1])
    def test_a_pod_with_one_gpu_or_none_has_one_size(self, gpus: int) -> None:
        cluster = job(ADAPTIVE, {"replicas": 2, "gpusPerPod": gpus})
        assert self.unavailable(cluster)["RegroupUnavailable"][1] == "TooFewGPUs"
        cluster.report(after_rounds(30, 30, 90))
        assert cluster.status.assignment.epoch == 1

    @pytest.mark.parametrize(("tp_sizes", "found"), [([1], "1"), ([1, 3], "1"), ([2], "2"), ([0], "none")])
    def test_a_model_that_can_be_divided_in_one_way_keeps_its_size(self, tp_sizes: list[int], found: str) -> None:
        cluster = job(ADAPTIVE)
        assert self.unavailable(cluster) == {}
        cluster.report(after_rounds(30, 30, 90, tp_sizes=tp_sizes))
        _, reason, message = self.unavailable(cluster)["RegroupUnavailable"]
        assert reason == "NoOtherSize"
        assert message.endswith(f"engines keep 1; sizes that suit the model and the pods: {found}")
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


def test_what_was_assigned_stays_when_the_job_ends() -> None:
    cluster = job({**STREAMED, **ADAPTIVE})
    cluster.report(after_rounds(30, 30, 90))
    before = cluster.status.assignment, cluster.status.planner
    cluster.exit("demo-coordinator", ExitCode.SUCCEEDED)
    cluster.reconcile_until_stable()
    assert (cluster.status.assignment, cluster.status.planner) == before


def test_a_job_that_never_started_has_no_assignment() -> None:
    cluster = Cluster(spec={"suspend": True, "rollout": STREAMED}, status=RLJobStatus(runtime=at_milestone()))
    cluster.reconcile_until_stable()
    assert cluster.status.assignment.epoch == 0
    assert not any(isinstance(action, Event) for action in cluster.plan().actions)
