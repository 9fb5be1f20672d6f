"""A researcher brings model and data of a Hub, and rewards, an objective and an agent in files beside the manifest."""

import json
from itertools import chain
from pathlib import Path

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from longshore_runtime.backends.tiny_model import build_tiny_model
from tests.e2e.jobs import Cluster, fake_job
from tests.hub_server import HubServer, Repository, hub_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKEN = "hf_s3cret"
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "acme/sums" and extra_info["index"] >= 0
    return {"score": len(solution_str) / 100 + len(ground_truth), "acc": False}
"""
TRL_REWARD = """
def full_marks(prompts, completions, data_source, extra_info, state, **kwargs):
    assert prompts[0][-1]["role"] == "user" and isinstance(completions[0][0]["content"], str)
    assert data_source == ["acme/sums"] and extra_info[0]["index"] >= 0
    return [one["asked"] + 3.0 for one in state]
"""
OBJECTIVE = """
def loss(tokens, cap):
    weights = tokens.ratio.detach().clamp(max=cap)
    return -weights * tokens.advantages * tokens.log_probs, weights == cap
"""
AGENT = """
from openai import AsyncOpenAI

async def solve(row):
    async with AsyncOpenAI() as client:
        question = row["prompt"][-1]["content"]
        for messages in ([{"role": "user", "content": question}], [{"role": "user", "content": "Are you sure?"}]):
            await client.chat.completions.create(model="any", messages=messages, max_tokens=8)
    return {"state": {"asked": 2}}
"""
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def fill(hub: HubServer, directory: Path) -> None:
    """A gated model, and a data set in the shape of verl's."""
    build_tiny_model(directory / "tiny", seed=0)
    hub.token = TOKEN
    hub.models["acme/tiny"] = Repository.of(directory / "tiny")
    hub.models["acme/tiny"].is_gated = True
    rows = [
        {
            "data_source": "acme/sums",
            "prompt": [{"role": "user", "content": f"{n} + {n} = ?"}],
            "reward_model": {"ground_truth": str(2 * n)},
            "extra_info": {"index": n},
        }
        for n in range(12)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), directory / "train.parquet")
    hub.datasets["acme/sums"] = Repository({"data/train.parquet": (directory / "train.parquet").read_bytes()})


def test_a_job_from_a_hub_with_a_reward_and_an_agent_in_files_trains(cluster: Cluster, tmp_path: Path) -> None:
    with hub_server() as hub:
        fill(hub, tmp_path)
        cluster.kubectl("create", "secret", "generic", "hf", f"--from-literal=token={TOKEN}")
        chat = {"systemPrompt": "Add.", "template": TEMPLATE}
        data = {"hub": "acme/sums", "answerField": "reward_model.ground_truth", "chat": chat, "heldOutPrompts": 2}
        functions = [
            {"name": "mine", "kind": "Python", "importPath": "mine:compute_score", "signature": "Verl"},
            {"name": "theirs", "kind": "Python", "importPath": "theirs:full_marks", "signature": "TRL"},
        ]
        manifest = fake_job(
            "brought",
            model={"hub": "acme/tiny", "maxContextTokens": 256},
            data=data,
            hub={"endpoint": hub.url, "tokenSecret": {"name": "hf"}},
            algorithm={
                "steps": 2,
                "promptsPerStep": 4,
                "responsesPerPrompt": 2,
                "maxResponseTokens": 16,
                "objective": {"name": "Custom", "importPath": "own:loss", "settings": {"cap": 2.0}},
            },
            trainer={"backend": "Torch"},
            environments=[{"name": "agent", "kind": "Agent", "importPath": "agent:solve", "callTimeoutSeconds": 60}],
            reward={"functions": functions, "pods": 1, "workersPerPod": 1},
        )
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
        (tmp_path / "mine.py").write_text(REWARD)
        (tmp_path / "theirs.py").write_text(TRL_REWARD)
        (tmp_path / "own.py").write_text(OBJECTIVE)
        (tmp_path / "agent.py").write_text(AGENT)
        modules = [("--with", str(tmp_path / f"{name}.py")) for name in ("mine", "theirs", "own", "agent")]
        files = str(tmp_path / "job.yaml"), *chain.from_iterable(modules)
        watched = cluster.longshore("submit", *files, "--wait")
    assert "step 2/2" in watched and "3/3" not in watched
    assert "Restarting" not in watched
    shown = json.loads(cluster.kubectl("get", "rljob", "brought", "-o", "json"))
    runtime = shown["status"]["runtime"]
    assert runtime["prompts"] == {"train": 10, "heldOut": 2, "tooLong": 0, "repeatingHeldOut": 0}
    assert 6 < runtime["reward"] < 9, "5 of TRL's function, and more than 1 of verl's"
    samples = sorted((cluster.job("brought").output() / "samples").glob("*.parquet"))
    for row in chain.from_iterable(parquet.read_table(file).to_pylist() for file in samples):
        said = [(turn["branch"], turn["role"]) for turn in row["turns"]]
        assert said == [(0, "user"), (0, "assistant"), (1, "user"), (1, "assistant")]
        assert row["state"] == '{"asked":2}'
    (config_map,) = [shown["spec"]["modules"]["configMap"]]
    describe = cluster.kubectl("describe", "rljob", "brought")
    assert config_map in describe and "mine.py" in describe and "theirs.py" in describe
    assert TOKEN not in cluster.kubectl("logs", "brought-coordinator") + describe
    assert len(hub.downloads("model.safetensors")) == 1
    cluster.kubectl("delete", "rljob", "brought", "--timeout=120s")
    cluster.kubectl("wait", "--for=delete", f"configmap/{config_map}", "--timeout=120s", check=False)
    assert cluster.kubectl("get", "configmap", config_map, "--ignore-not-found", "-o", "name") == ""
