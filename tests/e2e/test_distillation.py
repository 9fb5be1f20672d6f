"""A warm-started model is the teacher of an untrained one, which learns nearly all that it can do."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.jobs import Cluster, Json

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

_CLAIM = "distillation"
_JOB_LIMIT_S = 3400.0


def test_an_untrained_model_reaches_nine_tenths_of_the_reward_of_its_teacher(cluster: Cluster, root: Path) -> None:
    claim, manifest = yaml.safe_load_all((root / "manifests/quickstart.yaml").read_text())
    claim["metadata"]["name"] = _CLAIM
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(claim))
    spec = manifest["spec"]
    spec["workers"]["replicas"] = 1
    spec["rollout"] = {"strategy": "Synchronous", "engine": spec["rollout"]["engine"]}

    def trained(name: str, algorithm: Json) -> Json:
        """Run a job, and return what it reports in the end."""
        manifest["metadata"]["name"] = name
        spec["storage"] = {"claimName": _CLAIM, "output": name}
        spec["evaluation"]["everySteps"] = algorithm["steps"]
        job = cluster.apply(manifest | {"spec": spec | {"algorithm": spec["algorithm"] | algorithm}})
        assert job.wait_finished(_JOB_LIMIT_S)["phase"] == "Succeeded", job.story()
        report: Json = job.status()["runtime"]
        job.delete()
        return report

    teacher = trained("teacher", {"steps": 1})
    untrained = {
        "warmStart": None,
        "seed": 1,  # Not the weights that the teacher began with.
        "objective": {
            "name": "Distillation",
            "teacher": {"path": teacher["finalModel"]},
            "aggregation": "SequenceMean",  # Or else the first responses, which never end, outweigh all others.
        },
        "steps": 320,
        "promptsPerStep": 192,
        "responsesPerPrompt": 1,
        "learningRate": 4e-3,
    }
    found, reward = trained("student", untrained)["heldOut"], teacher["heldOut"]["latest"]
    print(f"teacher {reward}, student {found}")
    assert found["before"] < 0.1 < reward
    assert found["latest"] >= 0.9 * reward
