"""A job that takes idle GPUs and gives them back: real admission, pods and trainers, engines that make responses up."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from tests.e2e.held import held
from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job, hashed_reward

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GPU = "longshore.dev/pretend-gpu"
NUM_STEPS, NUM_PROMPTS, NUM_RESPONSES = 24, 4, 4
SUMMED_IN_ANOTHER_ORDER = 1e-4
"""Replicas add up gradients in their own order. Other responses from the first change on make a difference of 0.4."""


@pytest.fixture
def two_gpus(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """All jobs together may hold two GPUs."""
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump({"admission": {"capacity": {GPU: 2}, "priorityClasses": {"urgent": {"value": 100}}}})
    )
    cluster.longshore("up", "--values", str(values))
    try:
        yield cluster
    finally:
        values.write_text(yaml.safe_dump({"admission": {"capacity": {}, "priorityClasses": {}}}))
        cluster.longshore("up", "--values", str(values))


def job(name: str, modules: Path, steps: int = NUM_STEPS, **workers: int) -> Json:
    """Rounds without a race, so that all jobs train on the same responses."""
    manifest = fake_job(name)
    spec = manifest["spec"]
    spec["algorithm"] |= {"steps": steps, "promptsPerStep": NUM_PROMPTS, "responsesPerPrompt": NUM_RESPONSES}
    spec["rollout"] = {
        "strategy": "Synchronous",
        "engine": {"backend": "Fake", "extraArgs": {"step_s": 0.01, "ignores_weights": True}},
    }
    spec["algorithm"]["learningRate"] = 1e-3
    spec["trainer"] = {"backend": "Torch"}
    spec["reward"], spec["coordinator"] = hashed_reward(modules)
    spec["checkpoint"] = {"everySteps": 1_000}
    spec["workers"] |= workers
    return manifest


def wait_size(one: Job, num_workers: int) -> Json:
    """Wait until the job runs with so many worker pods."""
    return one.wait(
        f"it runs with {num_workers} worker pods",
        lambda s: s["phase"] == "Running" and (s.get("runtime", {}).get("size") or {}).get("workers") == num_workers,
    )


def uids(one: Job) -> dict[str, str]:
    """UIDs of the pods of the job that are there."""
    pods = json.loads(one.cluster.kubectl("get", "pods", "-l", f"longshore.dev/job={one.name}", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def trained(one: Job) -> list[dict[str, list[int]]]:
    """Responses by draw that each step was trained on; they end in any order."""
    return [{draw: sorted(responses) for draw, responses in row["trained"].items()} for row in one.ledger()]


def learned(one: Job) -> dict[str, np.ndarray]:
    """What training has added to the weights of the initial model."""
    (initial,) = one.output().parents[1].glob("cache/tiny-*/model.safetensors")
    before, after = load_file(initial), load_file(one.output() / "model" / "model.safetensors")
    return {name: after[name].astype(np.float64) - before[name] for name in before}


def distance(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """Norm of the difference, as a share of the norm of the first."""
    squares = [(np.square(first[name] - second[name]).sum(), np.square(first[name]).sum()) for name in first]
    return float(np.sqrt(sum(one for one, _ in squares) / sum(one for _, one in squares)))


@pytest.mark.soak
def test_a_job_grows_into_idle_gpus_and_gives_them_back_without_a_restart(two_gpus: Cluster, tmp_path: Path) -> None:
    urgent = job("pressing", tmp_path)
    urgent["metadata"]["labels"] = {"longshore.dev/priority-class": "urgent"}
    manifests = job("first", tmp_path, steps=4), job("stretchy", tmp_path, replicas=2, minReplicas=1), urgent
    with ExitStack() as stack:  # No job ends before the others are where they should be.
        first_goes_on, goes_on, pressing_goes_on = (stack.enter_context(held(one, num_scored=20)) for one in manifests)
        first = two_gpus.apply(manifests[0])
        first.wait("it runs", lambda status: status.get("phase") == "Running")
        elastic = two_gpus.apply(manifests[1])
        wait_size(elastic, 1)
        before = uids(elastic)
        first_goes_on.set()
        assert first.wait_finished()["phase"] == "Succeeded", first.story()
        goes_on.set()
        grown_at = wait_size(elastic, 2)["runtime"]["step"]
        elastic.wait_step(grown_at + 1)
        goes_on.clear()

        pressing = two_gpus.apply(manifests[2])
        elastic.wait("it is to shrink", lambda status: status["assignment"]["size"]["workers"] == 1)
        goes_on.set()
        wait_size(elastic, 1)
        goes_on.clear()
        status = pressing.wait("it runs", lambda status: status.get("phase") == "Running")
        assert status["admission"]["gpus"] == {GPU: 1}
        after = uids(elastic)
        assert after == before, "the pods that it keeps are the same, and the other is gone"
        goes_on.set()
        pressing_goes_on.set()
        statuses = [one.wait_finished() for one in (elastic, pressing)]

    assert [status["phase"] for status in statuses] == ["Succeeded"] * 2, elastic.story() + pressing.story()
    assert statuses[0]["attempt"] == 1
    events = two_gpus.kubectl("get", "events", "--field-selector=involvedObject.name=stretchy", "-o", "json")
    reasons = [event["reason"] for event in json.loads(events)["items"]]
    assert {"Growing", "Shrinking", "Resized"} <= set(reasons)
    assert "Preempted" not in reasons
    for one in (elastic, pressing):
        assert_every_draw_once(one.ledger(), NUM_PROMPTS, NUM_RESPONSES)
    assert trained(elastic) == trained(pressing), "a job trains on the same responses whatever its size"
    apart = distance(*map(learned, (elastic, pressing)))
    assert apart < SUMMED_IN_ANOTHER_ORDER, "and learns the same"
    for one in (first, elastic, pressing):
        one.delete()
