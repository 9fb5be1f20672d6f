"""What an attempt was started with stays until it ends, also under another version of the operator.

Another version reads other settings out of a spec that nobody has changed: these tests change the spec of the model and
leave its generation as it is.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from longshore.api import contract
from longshore.api.spec import _FROZEN_WHILE_RUNNING, RLJobSpec
from longshore.api.status import AttemptSettings, Phase
from longshore_operator import settings
from longshore_operator.plan import Apply
from longshore_operator.settings import NOT_SEEN_BY_PODS, settings_changed
from tests.unit.operator.model import CONFIG, Cluster

CONFIG_MAP = ("ConfigMap", "demo-config")


def upgrade(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new operator, which remembers nothing, has another default and another image."""
    monkeypatch.setattr(settings, "_api_fingerprint", lambda: "newer")
    cluster.spec = cluster.spec | {"evaluation": {"responsesPerPrompt": 7}}
    cluster.config = replace(CONFIG, runtime_image="runtime:2")
    cluster.children = {}


def mounted(cluster: Cluster) -> int:
    """The setting as pods that start now would read it."""
    config = json.loads(cluster.manifests[CONFIG_MAP]["data"][contract.CONFIG_KEY])
    return int(config["evaluation"]["responsesPerPrompt"])


def image(cluster: Cluster, pod: str) -> str:
    return str(cluster.manifests["Pod", pod]["spec"]["containers"][0]["image"])


class TestUpgrade:
    def test_a_changed_default_restarts_no_running_job(self, running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        before = dict(running.pods)
        upgrade(running, monkeypatch)
        running.reconcile_until_stable()
        assert running.pods == before
        assert running.status.attempt == 1

    def test_a_pod_that_is_replaced_reads_and_runs_what_the_others_do(
        self, running: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upgrade(running, monkeypatch)
        running.delete("demo-worker-0")
        running.reconcile_until_stable()
        assert running.pods["demo-worker-0"].ready
        assert image(running, "demo-worker-0") == image(running, "demo-coordinator") == "runtime:1"
        assert mounted(running) == 1

    def test_the_next_attempt_takes_the_new_default_and_the_new_image(
        self, running: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upgrade(running, monkeypatch)
        running.reconcile_until_stable()
        running.delete("demo-coordinator")
        running.reconcile_until_stable()
        assert (running.status.attempt, mounted(running)) == (2, 7)
        assert image(running, "demo-worker-0") == image(running, "demo-coordinator") == "runtime:2"

    def test_an_attempt_that_has_not_begun_starts_with_what_the_new_version_reads(
        self, running: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        running.exit("demo-coordinator", 1)
        running.reconcile_until_stable()
        assert running.status.phase is Phase.RESTARTING
        upgrade(running, monkeypatch)
        running.pass_time(10)
        running.reconcile_until_stable()
        assert (running.status.attempt, mounted(running)) == (2, 7)
        assert image(running, "demo-worker-0") == image(running, "demo-coordinator") == "runtime:2"

    @pytest.mark.parametrize("is_seen_first", [True, False])
    def test_a_change_that_pods_do_not_see_restarts_nothing_with_or_after_an_upgrade(
        self, running: Cluster, monkeypatch: pytest.MonkeyPatch, is_seen_first: bool
    ) -> None:
        upgrade(running, monkeypatch)
        if is_seen_first:
            running.reconcile_until_stable()
        running.spec, running.generation = running.spec | {"backoffLimit": 2}, 2
        running.reconcile_until_stable()
        assert running.status.attempt == 1

    def test_a_change_of_settings_after_an_upgrade_starts_an_attempt(
        self, running: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upgrade(running, monkeypatch)
        running.reconcile_until_stable()
        running.spec, running.generation = running.spec | {"workers": {"replicas": 1}}, 4
        running.reconcile_until_stable()
        assert (running.status.attempt, len(running.workers())) == (2, 1)

    def test_a_running_job_whose_settings_are_gone_from_its_status_goes_on(self, running: Cluster) -> None:
        running.status = running.status.model_copy(update={"settings": None})
        running.spec = {"evaluation": {"responsesPerPrompt": 7}}
        running.reconcile_until_stable()
        assert running.status.attempt == 1
        assert running.status.settings is not None


class TestRunningJob:
    def test_an_image_that_is_set_while_it_runs_is_for_the_next_attempt(self, running: Cluster) -> None:
        running.spec, running.generation = {"image": "mine:3"}, 2
        running.delete("demo-worker-0")
        running.reconcile_until_stable()
        assert image(running, "demo-worker-0") == "runtime:1"
        running.delete("demo-coordinator")
        running.reconcile_until_stable()
        assert image(running, "demo-worker-0") == image(running, "demo-coordinator") == "mine:3"

    def test_an_image_that_waits_for_the_next_attempt_is_told_once_and_shown(self, running: Cluster) -> None:
        running.spec, running.generation = {"image": "mine:3"}, 2
        running.reconcile_until_stable()
        how = "spec.image: mine:3 takes effect with the next attempt: suspend and resume the job to start one"
        assert [event.message for event in running.events if event.reason == "ImageDeferred"] == [how]
        assert running.condition("Ready")[2] == f"all 4 pods are ready; {how}"
        running.delete("demo-coordinator")
        running.reconcile_until_stable()
        assert running.condition("Ready")[2] == "all 4 pods are ready"

    def test_a_new_default_image_of_the_operator_is_no_edit_that_waits(self, running: Cluster) -> None:
        running.config = replace(CONFIG, runtime_image="runtime:2")
        running.spec, running.generation = {"backoffLimit": 9}, 2
        running.reconcile_until_stable()
        assert "ImageDeferred" not in [event.reason for event in running.events]
        assert running.condition("Ready")[2] == "all 4 pods are ready"

    def test_deleted_settings_are_written_again(self, running: Cluster) -> None:
        del running.children[CONFIG_MAP]
        (action,) = running.plan().actions
        assert isinstance(action, Apply)
        assert (action.key, action.is_kept) == (CONFIG_MAP, True)

    def test_settings_are_written_before_each_attempt_though_the_spec_is_the_same(self, running: Cluster) -> None:
        running.delete("demo-coordinator")
        running.step()
        running.pods.clear()
        running.children[CONFIG_MAP] = ""
        applied = [action.key for action in running.plan(applied_for=(1, 1)).actions if isinstance(action, Apply)]
        assert applied == [CONFIG_MAP]


class TestFingerprint:
    @pytest.mark.parametrize(
        ("generation", "current", "changed"),
        [
            (5, "new-2", False), (6, "new-2", False), (7, "new-2", True), (7, "new-1", True),
            (5, "old-2", False), (6, "old-2", True), (9, "old-1", False),
        ],
    )  # fmt: skip
    def test_changes_are_counted_between_versions_and_settings_compared_within_one(
        self, generation: int, current: str, changed: bool
    ) -> None:
        recorded = AttemptSettings(generation=5, fingerprint="old-1", image="runtime:1")
        assert settings_changed(recorded, generation, current) is changed

    def test_whatever_pods_see_can_be_changed_only_while_the_job_is_suspended(self) -> None:
        """On this rests that a single change of the spec of a running job is none of its settings."""

        def immutable(field: Any) -> bool:
            return bool((field.json_schema_extra or {}).get("x-kubernetes-validations"))

        fields = RLJobSpec.model_fields
        changeable = {name for name, field in fields.items() if not immutable(field)}
        assert changeable == {*_FROZEN_WHILE_RUNNING, "trainer_workers", "modules", *NOT_SEEN_BY_PODS}
