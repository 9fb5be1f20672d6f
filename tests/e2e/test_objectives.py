"""The quickstart's job with one objective after the other: each is trained with real engines, and learns.

All jobs share a claim, in which the first leaves the warm-started model.
"""

from pathlib import Path
from statistics import median
from typing import Final

import pytest
import yaml

from longshore.api.objectives.registry import OBJECTIVES, WITH_CRITIC
from tests.e2e.jobs import Cluster, Job, Json, claim

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

CLAIM: Final = "objectives"
SETTINGS: Final = [
    *({"name": name} for name, one in OBJECTIVES.items() if name not in {"Custom", "Distillation", *WITH_CRITIC}),
    {"name": "GRPO", "advantage": "LengthWeighted"},
    {"name": "GRPO", "advantage": "NormalisedByFunction"},
    {"name": "GSPO", "aggregation": "SequenceSum"},
]
PARTIAL: Final = {"strategy": "PartialRollout", "onPolicy": "Relaxed"}
LEAST_GAIN: Final = 0.05
"""Gain in held-out reward in 12 steps, twice its standard error. Most gain more than 0.1."""
JOB_LIMIT_S: Final = 3000.0


@pytest.mark.parametrize("objective", SETTINGS, ids=lambda objective: "-".join(objective.values()))
def test_a_job_learns_with_each_objective(cluster: Cluster, root: Path, objective: Json) -> None:
    trained(cluster, root, {"objective": objective, "entropyCoefficient": 1e-4}, {}, LEAST_GAIN).delete()


@pytest.mark.parametrize(
    ("name", "rollout", "least_gain"), [("TPPO", PARTIAL, 0.1), ("PPO", {}, 0.2)], ids=["TPPO", "PPO"]
)
def test_a_job_learns_with_a_critic(cluster: Cluster, root: Path, name: str, rollout: Json, least_gain: float) -> None:
    """In 60 steps; which tokens are in a window depends on the speed of engines."""
    objective = {"name": name, "valueLearningRate": 1e-3}
    batch = {"steps": 60, "promptsPerStep": 96, "responsesPerPrompt": 1}
    job = trained(cluster, root, {"objective": objective, **batch}, rollout, least_gain)
    steps = job.metrics()[-25:]
    # Rewards of a short round of tail batching are nearly equal: there is nothing to explain.
    varied = [row for row in steps if row["round/is_long"]] or steps
    explained = [row["critic/vf_explained_var"] for row in varied]
    assert median(explained) > 0.2, explained
    job.delete()


def trained(cluster: Cluster, root: Path, algorithm: Json, rollout: Json, least_gain: float) -> Job:
    """Run the quickstart's job with these settings to its end, and see that it has learned so much."""
    documents = yaml.safe_load_all((root / "manifests/quickstart.yaml").read_text())
    manifest: Json = next(document for document in documents if document["kind"] == "RLJob")
    names = [value.lower() for value in algorithm["objective"].values() if isinstance(value, str)]
    manifest["metadata"]["name"] = "-".join(names)
    spec = manifest["spec"]
    spec["storage"]["claimName"] = CLAIM
    spec["workers"]["replicas"] = 1
    spec["algorithm"] |= {"steps": 12, **algorithm}
    spec["rollout"] |= rollout
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(claim(CLAIM)))
    job = cluster.apply(manifest)
    status = job.wait_finished(JOB_LIMIT_S)
    assert status["phase"] == "Succeeded", job.story()
    held_out = status["runtime"]["heldOut"]
    assert held_out["latest"] > held_out["before"] + least_gain, held_out
    return job
