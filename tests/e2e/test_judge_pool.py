"""A judge with pods of its own grades the responses of a job."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.jobs import Cluster, claim, fake_job
from tests.e2e.reward_inputs import write_judge

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CLAIM = "judged"
GPU = "longshore.dev/pretend-gpu"


def test_responses_are_graded_by_the_judge_of_the_job(cluster: Cluster, tmp_path: Path) -> None:
    write_judge(tmp_path / "judge")
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(claim(CLAIM)))
    cluster.longshore("put", CLAIM, str(tmp_path / "judge"), "judge")
    judge = {
        "placement": "Pool",
        "modelPath": "judge",
        "pool": {"gpusPerPod": 1, "gpuResourceName": GPU},
        "promptTemplate": "Grade: {response}",
        "scorePattern": r"(\d)",
        "maxScore": 9,
    }
    functions = [{"name": "critic", "kind": "Judge", "judge": judge}]
    job = cluster.apply(
        fake_job(
            "judged",
            model={"path": "judge", "maxContextTokens": 256},
            algorithm={"steps": 3, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 24, "seed": 3},
            data={"builtin": "Counting", "heldOutPrompts": 0},
            rollout={"strategy": "Synchronous", "engine": {"backend": "Fake", "extraArgs": {"step_s": 0.01}}},
            reward={"functions": functions, "pods": 1, "requestsPerPod": 2},
            storage={"claimName": CLAIM},
        )
    )
    holding = job.wait("the judge holds its GPU", lambda status: status.get("gpus", {}).get("judge") == 1)
    assert holding["judges"]["desired"] == 1
    finished = job.wait_finished()
    assert finished["phase"] == "Succeeded", job.story()
    means = [values["reward/critic/mean"] for values in job.metrics()]
    assert len(means) == 3
    assert all(0 < mean < 1 for mean in means)
    job.wait_nothing_runs()
    job.delete()
