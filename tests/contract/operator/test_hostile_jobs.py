"""Jobs that do harm end with a sentence, and the operator goes on for the others."""

from typing import Any

import pytest
from benchmarks.hostile_jobs import nested

from tests.contract.operator.harness import Jobs, eventually, job_spec

pytestmark = pytest.mark.usefixtures("operator")


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "null": ({"metadata": {"labels": None}}, "metadata.labels: cannot be removed"),
    "no-spec": ({"spec": None}, "spec: cannot be removed"),
    "tolerations": ({"spec": {"tolerations": 5}}, "spec.tolerations: must be a list"),
    "env": ({"spec": {"containers": [{"name": "longshore", "env": ["A"]}]}}, "must be an object"),
    "deep": ({"spec": nested(150)}, "nested more than 32 levels deep"),
    "large": ({"metadata": {"annotations": {"a": "x" * 40_000}}}, "larger than 32 KiB"),
}


def test_templates_that_the_api_server_takes_are_refused_with_a_sentence(jobs: Jobs) -> None:
    for name, (template, _) in HOSTILE.items():
        jobs.create(name, **job_spec() | {"workers": {"template": template}})
    for name, (_, reported) in HOSTILE.items():
        jobs.wait_phase("Failed", name)
        condition = jobs.condition("Failed", name)
        assert condition["reason"] == "TemplateRefused"
        assert condition["message"].startswith("spec.workers.template")
        assert reported in condition["message"]
    assert jobs.pods() == {}


def test_an_unreadable_coordinator_report_does_not_keep_its_job_from_suspension(jobs: Jobs) -> None:
    jobs.create(**job_spec())
    jobs.wait_phase("Running")
    times = {"switchSeconds": 1, "preemptionSeconds": 1, "roundSeconds": {"Odd": {"one": 1}}}
    jobs.report({"attempt": 1, "rolloutTimes": times})
    message = jobs.wait_condition("StatusUnreadable", "Dropped")["message"]
    assert message.startswith("status.runtime.rolloutTimes.roundSeconds")
    jobs.patch({"suspend": True})
    jobs.wait_phase("Suspended")
    eventually("all pods are gone", lambda: not jobs.pods())
    assert "StatusUnreadable" in jobs.event_reasons()
