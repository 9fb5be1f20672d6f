"""Responses that act in an environment over several turns, with the real engine, while everything around them dies."""

import subprocess
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from longshore.record.lengths import recorded_lengths
from longshore.record.model import RoundRecord
from longshore.rounds.messages import EpisodeLength
from tests.e2e.jobs import LIMIT_S, Cluster, Json, assert_every_draw_once, claim, fake_job
from tests.e2e.reward_inputs import write_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def game(root: Path, name: str, **algorithm: int) -> Json:
    """The manifest of the game, with storage of its own."""
    documents = yaml.safe_load_all((root / "manifests/guessing.yaml").read_text())
    manifest: Json = next(document for document in documents if document["kind"] == "RLJob")
    manifest["metadata"]["name"] = name
    manifest["spec"]["storage"] = {"create": {"size": "1Gi"}}
    manifest["spec"]["algorithm"] |= algorithm
    return manifest


@pytest.mark.soak
def test_a_game_of_several_turns_outlives_its_pods_and_trains_every_draw_once(cluster: Cluster, root: Path) -> None:
    manifest = game(root, "game", steps=10, promptsPerStep=8, responsesPerPrompt=4)
    manifest["spec"]["algorithm"]["warmStart"]["steps"] = 30
    manifest["spec"]["data"]["heldOutPrompts"] = 4
    manifest["spec"]["checkpoint"] = {"everySteps": 2}
    job = cluster.apply(manifest)
    job.wait_step(2)
    job.kill("environment-0")
    job.wait_step(job.status()["runtime"]["step"] + 1)
    worker = job.remove("worker-1")
    job.wait_replaced("worker-1", worker)
    job.kill("coordinator")
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    assert_every_draw_once(job.ledger(), num_prompts=8, num_responses=4)
    steps = job.metrics()
    assert max(row["rollout_corr/log_prob_mismatch_max"] for row in steps) < 1e-3, "engine and trainer disagree"
    assert all(row["num_turns/max"] > 1 for row in steps)
    rows = [
        row for file in sorted((job.output() / "samples").glob("*.parquet")) for row in pq.read_table(file).to_pylist()
    ]
    for row in rows:
        roles = [turn["role"] for turn in row["turns"]]
        assert roles == ["assistant" if place % 2 == 0 else "user" for place in range(len(roles))]
        sampled = [one["policy_version"] is not None for one in row["versions"]]
        assert sampled == [place % 2 == 0 for place in range(len(sampled))], "what a turn is, and what it has read"
    files = sorted((job.output() / "rounds").iterdir())
    lengths = recorded_lengths([RoundRecord.from_bytes(file.read_bytes()) for file in files]).groups
    recorded = {one for group in lengths for one in group}
    assert all(isinstance(one, EpisodeLength) and one.environment_s > 0 for one in recorded), "to simulate the job with"
    num_turns = {one.num_turns for one in recorded if isinstance(one, EpisodeLength)}
    assert num_turns >= {(len(row["turns"]) + 1) // 2 for row in rows}
    job.delete()


def test_a_job_trains_on_openenv_servers_in_its_pods_of_which_one_dies(
    cluster: Cluster, root: Path, tmp_path: Path
) -> None:
    """OpenEnv's own package makes and runs the server."""
    programs = root / ".venv" / "openenv" / "bin"
    if not (programs / "openenv").is_file():
        pytest.skip(f"there is no {programs}: install it with make openenv-server")
    subprocess.run([programs / "openenv", "init", "echo"], cwd=tmp_path, check=True, capture_output=True)
    serve = f"cd {tmp_path}/echo && exec {programs}/python -m server.app --host $(LONGSHORE_POD_IP) --port 8000"
    write_rows(tmp_path / "inputs" / "rows.jsonl", [{"prompt": f"{number}?", "answer": ""} for number in range(20)])
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(claim("echo")))
    cluster.longshore("put", "echo", str(tmp_path / "inputs"), "inputs")
    echo = {
        "name": "echo",
        "kind": "OpenEnv",
        "server": {"image": "unused", "command": ["sh", "-c", serve]},
        "maxTurns": 2,
        "callTimeoutSeconds": LIMIT_S,
        "pods": {"count": 2},
    }
    manifest = fake_job(
        "echo",
        model={"builtin": "Tiny", "maxContextTokens": 512},
        data={"path": "inputs/rows.jsonl", "heldOutPrompts": 0},
        environments=[echo],
        reward={"functions": [{"name": "worth", "kind": "Environment"}], "pods": 0},
        storage={"claimName": "echo"},
    )
    job = cluster.apply(manifest)
    job.wait_step(2)
    address = job.status()["environments"]["addresses"][1]
    commands = {one: " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
    (server,) = [one for one, command in commands.items() if f"server.app --host {address} " in command]
    server.kill()
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    assert_every_draw_once(job.ledger(), num_prompts=4, num_responses=4)
    assert all(row["num_turns/max"] == 2 and row["critic/rewards/max"] > 0 for row in job.metrics())
    assert "echo-environment-1: container server exited with code 137" in job.story()
    job.delete()


@pytest.mark.soak
def test_the_tiny_model_learns_the_game_with_tail_batching(cluster: Cluster, root: Path) -> None:
    job = cluster.apply(game(root, "learned-game"))
    status = job.wait_finished()
    assert status["phase"] == "Succeeded", job.story()
    held_out = status["runtime"]["heldOut"]
    assert held_out["latest"] > held_out["before"] + 0.25
    job.delete()
