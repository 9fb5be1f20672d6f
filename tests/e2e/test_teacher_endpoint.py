"""A job with real engines and trainers learns from a teacher behind an endpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from longshore_runtime.backends.tiny_model import build_tiny_model
from tests.contract.judge.server import Answer
from tests.contract.judge.teacher_server import TeacherServer
from tests.e2e.jobs import Cluster, Json

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def teacher(tmp_path: Path) -> Iterator[TeacherServer]:
    """A model of the size of the one to train, with other weights."""
    build_tiny_model(tmp_path, seed=7)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    @torch.no_grad()
    def log_probs(tokens: list[int]) -> list[float]:
        ids = torch.tensor([tokens])
        every = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1)
        return [0.0, *every.gather(-1, ids[0, 1:, None])[:, 0].tolist()]

    server = TeacherServer(log_probs, lambda token: str(tokenizer.decode([token])))
    yield server
    server.close()


@pytest.mark.parametrize("handover", ["Streamed", "AfterRound"])
def test_a_job_trains_on_what_its_endpoint_says(
    cluster: Cluster, root: Path, teacher: TeacherServer, handover: str
) -> None:
    documents = yaml.safe_load_all((root / "manifests/quickstart.yaml").read_text())
    manifest: Json = next(document for document in documents if document["kind"] == "RLJob")
    spec = manifest["spec"]
    name = manifest["metadata"]["name"] = f"taught-{handover.lower()}"
    secret = {"metadata": {"name": name}, "stringData": {"token": "s3cret"}, "apiVersion": "v1", "kind": "Secret"}
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(secret))
    endpoint = {"url": teacher.url, "modelName": "large", "tokenSecret": {"name": name}, "retries": 2}
    objective = {"name": "Distillation", "teacher": {"endpoint": endpoint}}
    batch = {"steps": 3, "promptsPerStep": 8, "responsesPerPrompt": 2, "maxResponseTokens": 48}
    spec["algorithm"] = batch | {"objective": objective, "learningRate": 1e-3}
    spec["rollout"]["handover"] = handover
    spec["trainer"]["verifyEvery"] = 1
    spec["storage"] = {"create": {"size": "1Gi"}}
    spec["workers"]["replicas"] = 1
    spec["evaluation"] = {"everySteps": 0}
    teacher.answers = [Answer(503, b"busy")]
    job = cluster.apply(manifest)
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    steps = job.metrics()
    assert len(steps) >= 3, "and those that drain what was deferred"
    assert all(values["actor/kl_loss"] > 0 for values in steps), "from a model with other weights"
    num_responses = sum(len(responses) for row in job.ledger() for responses in row["trained"].values())
    assert num_responses >= 3 * 16
    assert len(teacher.received) == 1 + 1 + num_responses, (
        "a prompt, which is asked about twice, and every response once"
    )
    assert {one.authorization for one in teacher.received} == {"Bearer s3cret"}
    assert "s3cret" not in cluster.kubectl("logs", f"{name}-coordinator")
    job.delete()
