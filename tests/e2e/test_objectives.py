"""The quickstart's job with one objective after the other: each is trained with real engines, and learns.

T-PPO and Distillation, which want other jobs, are in `test_ppo.py` and `test_distillation.py`.
"""

from pathlib import Path
from typing import Final

import pytest
import yaml

from longshore.api.objectives.registry import OBJECTIVES
from tests.e2e.jobs import Cluster, Json

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1800)]

SETTINGS: Final = [
    *({"name": name} for name in OBJECTIVES if name not in ("TPPO", "Distillation", "Custom")),
    {"name": "GRPO", "advantage": "LengthWeighted"},
    {"name": "GRPO", "advantage": "NormalisedByFunction"},
    {"name": "GSPO", "aggregation": "SequenceSum"},
]


@pytest.mark.parametrize("objective", SETTINGS, ids=lambda objective: "-".join(objective.values()))
def test_a_job_learns_with_each_objective(cluster: Cluster, root: Path, objective: Json) -> None:
    documents = yaml.safe_load_all((root / "manifests/quickstart.yaml").read_text())
    manifest: Json = next(document for document in documents if document["kind"] == "RLJob")
    name = "-".join(objective.values()).lower()
    manifest["metadata"]["name"] = name
    manifest["spec"]["storage"] = {"create": {"size": "1Gi"}}
    manifest["spec"]["workers"]["replicas"] = 1
    manifest["spec"]["algorithm"] |= {"objective": objective, "entropyCoefficient": 1e-4, "steps": 40}
    job = cluster.apply(manifest)
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    held_out = job.status()["runtime"]["heldOut"]
    assert held_out["latest"] > held_out["before"], job.story()
    job.delete()
