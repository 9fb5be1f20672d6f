"""Pods are repurposed by what a milestone reports, once a round, and the status shows why."""

import pytest

from longshore.api.contract import ExitCode
from longshore.api.round_status import (
    RepurposingBenefit,
    RoundKind,
)
from longshore.api.runtime_status import RuntimeStatus
from longshore.api.status import Overlay
from tests.unit.operator.assigned import (
    COSTS,
    PAYS,
    STREAMED,
    WHY,
    at_milestone,
    job,
    load,
    reasons,
)
from tests.unit.operator.model import Cluster


class TestRepurposing:
    def test_half_of_the_gpus_with_fewest_tokens_train_if_running_work_fits_the_others(self) -> None:
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

    def test_the_next_round_is_decided_again_and_late_telemetry_changes_nothing(self) -> None:
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

    def test_an_acknowledged_overlay_shows_why_until_its_round_is_over(self) -> None:
        cluster = self.overlaid()
        assert self.shown(cluster) == ("True", "Acknowledged", self.WHY)
        cluster.report(RuntimeStatus(attempt=1, step=1, applied_epoch=2, tp_size=1))
        message = "the overlay is over: it holds for the rest of one round of one attempt"
        assert self.shown(cluster) == ("False", "OverlayEnded", message)

    def test_one_event_reports_every_acknowledgement(self) -> None:
        cluster = self.overlaid()
        event = cluster.events[-1]
        assert (event.type, event.reason, event.message) == ("Normal", "Repurposed", self.WHY)
        cluster.report(self.ACKNOWLEDGED)
        assert reasons(cluster) == ["Repurposing", "Repurposed"]
        cluster.report(at_milestone(2, applied_epoch=2, tp_size=1))
        cluster.report(at_milestone(2, applied_epoch=3, trainer_pods=[2, 3], tp_size=1))
        assert reasons(cluster) == ["Repurposing", "Repurposed"] * 2
        assert len({event.key for event in cluster.events if event.reason == "Repurposed"}) == 2

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
