"""A job that takes idle GPUs and gives them back: real admission and pods, engines that compute nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GPU = "longshore.dev/pretend-gpu"
NUM_STEPS, NUM_PROMPTS, NUM_RESPONSES = 24, 4, 4


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


def job(name: str, steps: int = NUM_STEPS, **workers: int) -> Json:
    """Rounds without a race, so that all jobs train on the same responses; sums of the fake trainer are exact."""
    manifest = fake_job(name)
    spec = manifest["spec"]
    spec["algorithm"] |= {"steps": steps, "promptsPerStep": NUM_PROMPTS, "responsesPerPrompt": NUM_RESPONSES}
    spec["rollout"] = {"strategy": "Synchronous", "engine": {"backend": "Fake", "extraArgs": {"step_s": 0.01}}}
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
    """Of the pods of the job that are there."""
    pods = json.loads(one.cluster.kubectl("get", "pods", "-l", f"longshore.dev/job={one.name}", "-o", "json"))["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def test_a_job_grows_into_idle_gpus_and_gives_them_back_without_a_restart(two_gpus: Cluster) -> None:
    first = two_gpus.apply(job("first", steps=4))
    first.wait("it runs", lambda status: status.get("phase") == "Running")
    elastic = two_gpus.apply(job("stretchy", replicas=2, minReplicas=1))
    wait_size(elastic, 1)
    before = uids(elastic)
    assert first.wait_finished()["phase"] == "Succeeded", first.story()
    grown_at = wait_size(elastic, 2)["runtime"]["step"]
    elastic.wait_step(grown_at + 1)

    manifest = job("pressing")
    manifest["metadata"]["labels"] = {"longshore.dev/priority-class": "urgent"}
    pressing = two_gpus.apply(manifest)
    wait_size(elastic, 1)
    status = pressing.wait("it runs", lambda status: status.get("phase") == "Running")
    assert status["admission"]["gpus"] == {GPU: 1}
    after = uids(elastic)
    assert after == before, "the pods that it keeps are the same, and the other is gone"
    statuses = [one.wait_finished() for one in (elastic, pressing)]

    assert [status["phase"] for status in statuses] == ["Succeeded"] * 2, elastic.story() + pressing.story()
    assert statuses[0]["attempt"] == 1
    events = two_gpus.kubectl("get", "events", "--field-selector=involvedObject.name=stretchy", "-o", "json")
    reasons = [event["reason"] for event in json.loads(events)["items"]]
    assert {"Growing", "Shrinking", "Resized"} <= set(reasons)
    assert "Preempted" not in reasons
    for one in (elastic, pressing):
        assert_every_draw_once(one.ledger(), NUM_PROMPTS, NUM_RESPONSES)
    weights = [json.loads((one.output() / "model" / "trainer.json").read_text()) for one in (elastic, pressing)]
    assert weights[0] == weights[1], "a job learns the same whatever its size"
    for one in (first, elastic, pressing):
        one.delete()
