"""What keeps a job from running is named in its conditions."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from longshore.api.contract import ExitCode
from longshore.api.names import Component
from longshore.api.rljob import RLJob
from longshore.api.status import Phase, RLJobStatus
from longshore_operator.config import OperatorConfig
from longshore_operator.context import ClaimView
from longshore_operator.plan import DeletePod
from longshore_operator.pod_view import PodView
from longshore_operator.reconcile import reject
from tests.unit.operator.model import START, Cluster, make_job
from tests.unit.operator.test_disaggregated import apart
from tests.unit.operator.test_environment_pods import playing
from tests.unit.operator.test_judge_pools import judged

ESCALATES = {"spec": {"hostNetwork": True}}


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

    def test_a_job_that_waits_for_a_reward_pod_names_it_and_the_schedulers_sentence(self, running: Cluster) -> None:
        no_room = "0/1 nodes are available: 1 Insufficient cpu."
        running.change("demo-reward-0", ready=False, scheduled=False, unschedulable=no_room)
        running.step()
        message = f"3 of 4 pods are ready; demo-reward-0: {no_room}"
        assert running.condition("Ready") == ("False", "PodsNotReady", message)
        assert running.condition("Scheduled") == ("False", "Unschedulable", f"demo-reward-0: {no_room}")

    def test_pods_that_start_are_named_once_the_coordinator_is_ready(self, running: Cluster) -> None:
        for name in ("demo-worker-0", "demo-reward-0"):
            running.change(name, ready=False)
        running.step()
        assert running.condition("Ready")[2] == "2 of 4 pods are ready; not ready: demo-reward-0, demo-worker-0"
        running.change("demo-coordinator", ready=False)
        running.step()
        assert running.condition("Ready")[2] == "1 of 4 pods are ready"

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

    def test_a_job_whose_pods_are_ready_runs_on_whatever_is_refused(self, running: Cluster) -> None:
        """A quota that leaves no room for one more reward pod, a label that a webhook refuses."""
        error = "pods is forbidden: exceeded quota: pods"
        running.apply(running.plan(apply_error=error))
        assert running.status.phase is Phase.RUNNING
        status, reason, message = running.condition("Ready")
        assert (status, reason) == ("True", "PodsReady")
        assert message.endswith(f"pods are ready; but a change cannot be made: {error}")
        assert (running.events[-1].reason, running.events[-1].message) == ("ApplyFailed", error)
        running.change("demo-worker-0", ready=False)
        running.apply(running.plan(apply_error=error))
        assert running.condition("Ready")[:2] == ("False", "ApplyFailed")

    @pytest.mark.parametrize("error", ["pods is forbidden: exceeded quota: pods", "policy: " + 3000 * "x"])
    def test_a_change_that_cannot_be_made_is_an_event_once_however_long_its_reason_is(
        self, running: Cluster, error: str
    ) -> None:
        before = len(running.events)
        for _ in range(3):
            running.apply(running.plan(apply_error=error))
        assert [event.message for event in running.events[before:]] == [error]

    def test_pods_that_are_slow_to_end_are_named(self, running: Cluster) -> None:
        running.exit("demo-coordinator", ExitCode.INTERRUPTED)
        running.step()
        running.step()
        running.status = running.status.model_copy(update={"phase": Phase.STARTING})
        running.step()
        assert running.condition("Ready")[1] == "WaitingForPodsToEnd"

    @pytest.mark.parametrize(
        ("spec", "field"),
        [
            *(({one: {"template": ESCALATES}}, one) for one in ("coordinator", "workers", "reward")),
            (apart(template=ESCALATES), "trainerWorkers"),
            (judged(template=ESCALATES), "reward.functions[critic].judge.pool"),
            (playing(template=ESCALATES), "environments[shell].pods"),
        ],
        ids=["coordinator", "workers", "reward", "trainers", "judges", "environments"],
    )
    def test_a_template_that_escalates_is_refused(self, spec: dict[str, Any], field: str) -> None:
        cluster = Cluster(spec=spec)
        cluster.reconcile_until_stable()
        assert cluster.condition("Failed")[1] == "TemplateRefused"
        assert f"spec.{field}.template.spec.hostNetwork" in cluster.condition("Failed")[2]
        assert cluster.names() == []

    @pytest.mark.parametrize("name", ["gvisor", "runc-unconfined"])
    @pytest.mark.parametrize("field", ["reward", "environments[shell].pods"])
    def test_a_runtime_class_of_isolated_pods_must_be_among_the_allowed_ones(self, field: str, name: str) -> None:
        config = OperatorConfig("runtime:1", runtime_classes=frozenset({"gvisor"}))
        is_reward = field == "reward"
        spec = {"reward": {"runtimeClassName": name}} if is_reward else playing(runtimeClassName=name)
        cluster = Cluster(spec=spec, config=config)
        cluster.reconcile_until_stable()
        if name == "gvisor":
            pod = "demo-reward-0" if is_reward else "demo-environment-1"
            assert cluster.manifests["Pod", pod]["spec"]["runtimeClassName"] == "gvisor"
            return
        assert cluster.condition("Failed")[1] == "TemplateRefused"
        assert cluster.condition("Failed")[2] == (
            f"spec.{field}.runtimeClassName: 'runc-unconfined' is not among the operator's allowed RuntimeClasses "
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
