"""Engines regroup by the preemptions of rounds and the profile of the job, and by a new spec."""

from typing import Any

import pytest

from longshore.api.contract import ExitCode
from longshore.api.round_status import (
    RolloutTimes,
    RoundKind,
    RoundSummary,
)
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Phase, PlannerStatus
from tests.unit.operator.assigned import (
    ADAPTIVE,
    STREAMED,
    after_rounds,
    at_milestone,
    job,
    reasons,
)
from tests.unit.operator.model import Cluster


def without_nulls(value: Any) -> Any:
    """Return the value without nulls, as some API servers store what is applied."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


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

    def test_rounds_reported_singly_together_or_twice_give_the_same_sizes_and_memory(self) -> None:
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

    def test_sizes_that_the_coordinator_has_not_reported_are_waited_for(self) -> None:
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

    @pytest.mark.parametrize("size", [0, -1, 2**70])
    def test_a_coordinator_that_reports_preemptions_at_impossible_sizes_stops_no_pass(self, size: int) -> None:
        seconds = {key: {1: 50.0, 2: 60.0} for key in (RoundKind.SHORT, RoundKind.LONG)}
        preemptions = {RoundKind.SHORT: {size: 1.0}}
        times = RolloutTimes(switch_s=0.5, preemption_s=1.0, round_s=seconds, preemptions=preemptions)
        cluster = job({"engine": {"parallelism": "Adaptive", "tensorParallelSize": 2}})
        cluster.report(after_rounds(0, 0, 0, 0, rollout_times=times))
        cluster.spec = cluster.spec | {"suspend": True}
        cluster.reconcile_until_stable()
        assert cluster.status.phase is Phase.SUSPENDED

    @pytest.mark.parametrize(
        "change",
        [
            {"recent": ["x"]},
            {"recent": [-1]},
            {"num_rounds": "x"},
            {"known": [[0, 1.0]]},
            {"known": [[2, "x"]]},
            {"cool_down": [[1, 2]]},
            {"expected": []},
            {"zero_streak": None},
        ],
    )
    def test_a_memory_with_other_things_than_numbers_in_it_is_replaced(self, change: dict[str, Any]) -> None:
        """The coordinator may write it too."""
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        planner = cluster.status.planner
        assert planner is not None
        kinds = {kind: state | change for kind, state in planner.state["kinds"].items()}
        damaged = PlannerStatus(round=planner.round, state=planner.state | {"kinds": kinds})
        cluster.status = cluster.status.model_copy(update={"planner": damaged})
        cluster.report(after_rounds(30, first=4))
        assert "PlannerReset" in reasons(cluster)

    def test_a_memory_that_cannot_be_read_is_replaced_and_reported(self) -> None:
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
        ("spec", "reason"),
        [
            ({"rollout": {}}, "the spec changed"),
            ({"rollout": {**ADAPTIVE, "strategy": "Synchronous"}}, "the spec changed"),
            (
                {"workers": {"replicas": 4, "gpusPerPod": 3}},
                "engines of the chosen sizes do not fill the worker pods any more",
            ),
        ],
        ids=["fixed", "another strategy", "other pods"],
    )
    def test_sizes_that_no_longer_fit_the_spec_are_dropped(self, spec: dict[str, Any], reason: str) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        self.change(cluster, **spec)
        assert cluster.status.assignment.epoch == 3
        assert cluster.status.assignment.reason == reason
        assert cluster.status.assignment.baseline.tp_sizes == {}

    def test_another_change_keeps_sizes_and_memory(self) -> None:
        cluster = job(ADAPTIVE)
        cluster.report(after_rounds(30, 30, 90))
        before = cluster.status.assignment, cluster.status.planner
        self.change(cluster, reward={"pods": 2})
        assert (cluster.status.assignment, cluster.status.planner) == before
