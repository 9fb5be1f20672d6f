"""`longshore simulate --share`: what jobs alike gain if they take turns on GPUs."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.simulated import Json, manifest, refusal, simulated

LONG = {"workers__replicas": 4, "model__maxContextTokens": 10_000, "algorithm__maxResponseTokens": 8_192}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return manifest(tmp_path_factory.mktemp("share"), **LONG)


def report(*arguments: str | Path) -> Json:
    found: Json = json.loads(simulated(*arguments, "--json").stdout)
    return found


def test_gpus_slowdown_and_gain(job: Path) -> None:
    """Each job has four pods of two GPUs and keeps one pod."""
    found = report(job, "--share", "2", "--max-slowdown", "2")
    assert (found["numJobs"], found["ownGpus"], found["numGpusAlone"]) == (2, 2, 16)
    assert (found["numGroups"], found["numGpus"]) == (1, 2 + 2 + 6)
    assert 1 < found["slowdown"] <= 2
    assert found["gain"] >= 1.6 / found["slowdown"] - 1e-6


def test_jobs_share_nothing_within_a_limit_that_leaves_no_room(job: Path) -> None:
    found = report(job, "--share", "2", "--max-slowdown", "1")
    assert (found["numGroups"], found["numGpus"], found["gain"], found["slowdown"]) == (2, 16, 1.0, 1.0)


def test_the_same_in_sentences(job: Path) -> None:
    text = simulated(job, "--share", "2", "--max-slowdown", "2").stdout
    assert "2 jobs in 1 group need 10 GPUs instead of 16; each keeps 2 for itself." in text
    assert "times as many jobs per GPU hour." in text


def test_what_cannot_share_is_refused_with_the_fix(tmp_path: Path) -> None:
    one_pod = manifest(tmp_path, workers__replicas=1)
    assert "Set workers.replicas to 2 or more" in refusal(one_pod, "--share", "2", "--model", "Qwen2.5-7B")
    streamed = manifest(tmp_path, rollout__handover="Streamed")
    assert "rollout.handover: AfterRound" in refusal(streamed, "--share", "2", "--model", "Qwen2.5-7B")
    adaptive = manifest(tmp_path, rollout__engine={"parallelism": "Adaptive"})
    assert "rollout.engine.parallelism: Fixed" in refusal(adaptive, "--share", "2", "--model", "Qwen2.5-7B")


def test_options_that_change_the_job_are_refused(job: Path) -> None:
    assert "leave out what changes" in refusal(job, "--share", "2", "--gpus", "4")
