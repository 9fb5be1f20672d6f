"""What a user may get wrong: refused at apply, or the job ends with one sentence, its logs, and nothing running."""

from typing import Any

import pytest
import yaml

from tests.e2e.jobs import Cluster, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"rollout": {"strategy": "Fastest"}}, "spec.rollout.strategy", "Unsupported value"),
        ({"algorithm": {"promptsPerStep": 0}}, "spec.algorithm.promptsPerStep", "greater than or equal to 1"),
        (
            {"workers": {"gpusPerPod": 4}, "rollout": {"engine": {"tensorParallelSize": 3}}},
            "spec.rollout.engine.tensorParallelSize",
            "or be a multiple of it",
        ),
        ({"algorithm": {"steps": "many"}}, "spec.algorithm.steps", "must be of type integer"),
        ({"algorithm": {"stepz": 3}}, "spec.algorithm.stepz", "unknown field"),
    ],
)
def test_a_wrong_manifest_is_refused_with_field_and_reason(
    cluster: Cluster, change: dict[str, Any], field: str, reason: str
) -> None:
    manifest = fake_job("wrong")
    for part, values in change.items():
        spec = manifest["spec"]
        spec[part] = {**spec.get(part, {}), **values} if isinstance(values, dict) else values
    output = cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest), check=False)
    assert field in output
    assert reason in output
    assert cluster.kubectl("get", "rljob", "wrong", "--ignore-not-found") == ""


def test_the_model_of_a_job_cannot_change(cluster: Cluster) -> None:
    manifest = fake_job("fixed", suspend=True)
    job = cluster.apply(manifest)
    manifest["spec"]["model"] = {"path": "models/other"}
    output = cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest), check=False)
    assert "spec.model" in output
    assert "immutable" in output
    job.delete()


@pytest.mark.parametrize(
    ("name", "spec", "sentence"),
    [
        ("no-model", {"model": {"path": "models/absent"}}, "model.path: 'models/absent' does not exist"),
        (
            "no-engine",
            {"rollout": {"engine": {"backend": "Fake", "extraArgs": {"speed": 9}}}},
            "rollout.engine.extraArgs: backend Fake has no option 'speed'",
        ),
    ],
)
def test_a_job_that_cannot_run_fails_with_one_sentence_and_keeps_its_logs(
    cluster: Cluster, name: str, spec: dict[str, Any], sentence: str
) -> None:
    job = cluster.apply(fake_job(name, **spec))
    assert job.wait_finished()["phase"] == "Failed"
    failed = job.condition("Failed")
    assert failed["reason"] == "UserError"
    assert sentence in failed["message"]
    assert "\n" not in failed["message"]
    assert sentence in cluster.kubectl("logs", f"{name}-coordinator")
    job.wait_nothing_runs()
    job.delete()
