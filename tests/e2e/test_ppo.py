"""Jobs with a critic, on real engines and trainers."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.jobs import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]
QUICKSTART = Path(__file__).parents[2] / "manifests" / "quickstart.yaml"


def job_with_critic(objective: str) -> dict[str, Any]:
    """The job of the quickstart with a critic, and with one response to a prompt."""
    _, job = yaml.safe_load_all(QUICKSTART.read_text(encoding="utf-8"))
    spec = deepcopy(job["spec"])
    spec["algorithm"] |= {"steps": 60, "promptsPerStep": 96, "responsesPerPrompt": 1}
    spec["algorithm"]["objective"] = {"name": objective, "valueLearningRate": 1e-3}
    spec["rollout"] |= {"strategy": "PartialRollout", "onPolicy": "Relaxed"} if objective == "TPPO" else {}
    spec["workers"] |= {"replicas": 1}
    spec["storage"] = {"create": {"size": "5Gi"}}
    return job | {"metadata": {"name": f"{objective.lower()}-learns"}, "spec": spec}


@pytest.mark.parametrize("name", ["PPO", "TPPO"])
def test_a_job_with_a_critic_learns_the_task_of_the_quickstart(name: str, cluster: Cluster) -> None:
    job = cluster.apply(job_with_critic(name))
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert job.metrics()[-1]["critic/vf_explained_var"] > 0.2
    assert status["runtime"]["heldOut"]["latest"] > status["runtime"]["heldOut"]["before"] + 0.2
    job.delete()
