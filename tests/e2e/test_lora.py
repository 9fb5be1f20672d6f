"""A job that trains an adapter: it learns, survives lost pods, and exports the adapter and the merged model."""

from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.e2e.jobs import Cluster, assert_every_draw_once
from tests.e2e.test_job import small_quickstart

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(1800)]

RANK = 8
STEPS = 40


def test_a_job_with_lora_learns_and_survives_the_loss_of_pods(cluster: Cluster, root: Path, tmp_path: Path) -> None:
    manifest = small_quickstart(root)
    manifest["metadata"]["name"] = "lora"
    spec = manifest["spec"]
    spec["trainer"]["lora"] = {"rank": RANK, "alpha": RANK}
    spec["algorithm"]["warmStart"]["steps"] = 200
    spec["algorithm"] |= {"steps": STEPS, "promptsPerStep": 8, "maxResponseTokens": 128, "learningRate": 1e-3}
    spec["data"]["heldOutPrompts"] = 32
    spec["checkpoint"] = {"everySteps": 4}
    job = cluster.apply(manifest)
    job.wait_step(1)  # Its start takes as long as many steps.
    job.wait_step(STEPS // 4)
    job.kill("worker-0")  # An engine and a trainer: both come back, with the base from files and the adapter.
    job.wait_step(STEPS // 2)
    job.kill("coordinator")
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    assert_every_draw_once(job.ledger(), num_prompts=8, num_responses=4)
    steps = job.metrics()
    assert max(values["rollout_corr/log_prob_mismatch_max"] for values in steps) < 1e-3
    rewards = [values["critic/rewards/mean"] for values in steps]
    assert mean(rewards[-8:]) > mean(rewards[:8]) + 0.05, rewards

    cluster.longshore("fetch", "lora", str(tmp_path / "model"))
    merged = load_file(tmp_path / "model" / "model.safetensors")
    adapter = load_file(job.output() / "adapter" / "adapter_model.safetensors")
    assert all(np.abs(matrix).max() > 0 for matrix in adapter.values())
    assert sum(name.endswith("lora_A.weight") for name in adapter) == len(adapter) // 2 > 0
    checkpoint = max((job.output() / "checkpoints").iterdir())
    assert not (checkpoint / "trainer" / "model.safetensors").exists(), "the base is not saved again"
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() < 1_000_000
    assert all(np.isfinite(values).all() for values in merged.values())
    job.delete()
