"""Two jobs that take turns on the same GPUs: real operator, pods and Ray, engines and trainers that compute nothing."""

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.contract.rewards.endpoint import Reply, serving
from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_STEPS, NUM_PROMPTS, NUM_RESPONSES, NUM_HELD_OUT = 8, 4, 4, 4
NUM_SCORED = NUM_HELD_OUT + NUM_STEPS * NUM_PROMPTS * NUM_RESPONSES
"""Before the last evaluation."""


def job(name: str, **spec: object) -> Json:
    """Rounds without a race, so that all jobs train on the same responses; sums of the fake trainer are exact."""
    manifest = fake_job(name, **spec)
    algorithm = {"steps": NUM_STEPS, "promptsPerStep": NUM_PROMPTS, "responsesPerPrompt": NUM_RESPONSES}
    manifest["spec"]["algorithm"] |= algorithm
    manifest["spec"]["data"]["heldOutPrompts"] = NUM_HELD_OUT
    manifest["spec"]["rollout"]["strategy"] = "Synchronous"
    return manifest


def coordinator_log(one: Job) -> Path:
    return one.output() / "logs" / "coordinator-1.log"


class Patience:
    """Has a job wait with its rewards until it has given the GPUs away, or nobody else wants them any more."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.are_applied = threading.Event()
        self.is_over = threading.Event()

    @contextmanager
    def asked_by(self, manifest: Json) -> Iterator[None]:
        """A job that is applied within the block; its rewards stay the same: a function is added that scores 0."""
        name, numbers = manifest["metadata"]["name"], itertools.count()

        def score(path: str, body: Json) -> Reply:
            if NUM_HELD_OUT <= next(numbers) < NUM_SCORED:
                self.are_applied.wait()
                while not (self._may_go_on(name) or self.is_over.wait(0.05)):
                    pass
            return Reply(body={"reward": 0})

        with serving(score) as service:
            patience = {"name": "patience", "kind": "HTTP", "http": {"url": service.address}, "timeoutSeconds": 3600}
            manifest["spec"]["reward"]["functions"].append(patience)
            try:
                yield
            finally:
                self.is_over.set()
                self.are_applied.set()

    def _may_go_on(self, name: str) -> bool:
        (other,) = (one for one in self.jobs if one != name)
        log, log_of_other = (coordinator_log(self.jobs[one]) for one in (name, other))
        gone = log_of_other.exists() and "[info] finished" in log_of_other.read_text()
        text = log.read_text()
        return gone or text.count("GPUs granted") == text.count("GPUs returned")


def weights(one: Job) -> Json:
    """Of the final model."""
    found: Json = json.loads((one.output() / "model" / "trainer.json").read_text())
    return found


def turns(one: Job) -> list[tuple[float, float]]:
    """When the job had the GPUs, in Unix seconds, by its log: from grant to return; the last turn ends with the job."""
    log = coordinator_log(one)
    seen = re.findall(r"GPUs (granted|returned) .*unix_s=([0-9.]+)", log.read_text())
    granted = [float(time_s) for what, time_s in seen if what == "granted"]
    returned = [float(time_s) for what, time_s in seen if what == "returned"]
    assert len(granted) - len(returned) in (0, 1), seen
    return list(zip(granted, [*returned, log.stat().st_mtime], strict=False))


def test_jobs_that_share_gpus_learn_what_they_learn_alone_and_never_use_them_at_once(cluster: Cluster) -> None:
    alone = cluster.apply(job("alone"))
    patience, sharing = Patience(), {"group": "pair", "maxSlowdown": 50}
    manifests = [job(name, sharing=sharing) for name in ("left", "right")]
    with patience.asked_by(manifests[0]), patience.asked_by(manifests[1]):
        shared = [cluster.apply(manifest) for manifest in manifests]
        patience.jobs = {one.name: one for one in shared}
        patience.are_applied.set()
        statuses = [one.wait_finished() for one in (alone, *shared)]
    assert [status["phase"] for status in statuses] == ["Succeeded"] * 3, "".join(one.story() for one in shared)

    for one in (alone, *shared):
        assert_every_draw_once(one.ledger(), NUM_PROMPTS, NUM_RESPONSES)
    assert weights(shared[0]) == weights(shared[1]) == weights(alone)
    assert [row["trained"] for row in shared[0].ledger()] == [row["trained"] for row in alone.ledger()]

    spans = sorted((*span, one.name) for one in shared for span in turns(one))
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), "both had the GPUs at once"
    changes = sum(one[2] != other[2] for one, other in pairwise(spans))
    assert changes >= 2 * NUM_STEPS, f"each step of one is followed by one of the other: {spans}"
    for status in statuses[1:]:
        report = status["runtime"]["sharing"]
        assert report["numSteps"] == NUM_STEPS - 1
        assert min(report[f"{what}Seconds"] for what in ("wait", "switch", "turn", "step")) > 0
    assert "sharing" not in statuses[0]["runtime"]
    assert any("sharing/wait_s" in row for row in shared[0].metrics())
    for one in (alone, *shared):
        one.delete()
