"""Two jobs that take turns on the same GPUs: real operator, pods and Ray, engines and trainers that compute nothing."""

import json
import re
from itertools import pairwise

import pytest

from tests.e2e.jobs import Cluster, Job, Json, assert_every_draw_once, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_STEPS, NUM_PROMPTS, NUM_RESPONSES = 8, 4, 4


def job(name: str, **spec: object) -> Json:
    """Rounds without a race, so that all jobs train on the same responses; sums of the fake trainer are exact."""
    manifest = fake_job(name, **spec)
    algorithm = {"steps": NUM_STEPS, "promptsPerStep": NUM_PROMPTS, "responsesPerPrompt": NUM_RESPONSES}
    manifest["spec"]["algorithm"] |= algorithm
    manifest["spec"]["rollout"]["strategy"] = "Synchronous"
    return manifest


def weights(one: Job) -> Json:
    """Of the final model."""
    found: Json = json.loads((one.output() / "model" / "trainer.json").read_text())
    return found


def turns(one: Job) -> list[tuple[float, float]]:
    """When the job had the GPUs, in Unix seconds, by its log: from grant to return; the last turn ends with the job."""
    log = one.output() / "logs" / "coordinator-1.log"
    seen = re.findall(r"GPUs (granted|returned) .*unix_s=([0-9.]+)", log.read_text())
    granted = [float(time_s) for what, time_s in seen if what == "granted"]
    returned = [float(time_s) for what, time_s in seen if what == "returned"]
    assert len(granted) - len(returned) in (0, 1), seen
    return list(zip(granted, [*returned, log.stat().st_mtime], strict=False))


def log_times(one: Job, message: str) -> list[str]:
    """When the coordinator logged this, as hours, minutes and seconds."""
    log = (one.output() / "logs" / "coordinator-1.log").read_text()
    return re.findall(rf"^(\d\d:\d\d:\d\d) \[info\] {message} ", log, re.MULTILINE)


def asked_at(one: Job) -> str:
    """When it first wanted the GPUs."""
    return log_times(one, "waiting for the GPUs")[0]


def num_steps_before(one: Job, time: str) -> int:
    """Steps that it had made."""
    return sum(made < time for made in log_times(one, "step"))


def test_jobs_that_share_gpus_learn_what_they_learn_alone_and_never_use_them_at_once(cluster: Cluster) -> None:
    alone = cluster.apply(job("alone"))
    shared = [cluster.apply(job(name, sharing={"group": "pair", "maxSlowdown": 50})) for name in ("left", "right")]
    statuses = [one.wait_finished() for one in (alone, *shared)]
    assert [status["phase"] for status in statuses] == ["Succeeded"] * 3, "".join(one.story() for one in shared)

    for one in (alone, *shared):
        assert_every_draw_once(one.ledger(), NUM_PROMPTS, NUM_RESPONSES)
    assert weights(shared[0]) == weights(shared[1]) == weights(alone)
    assert [row["trained"] for row in shared[0].ledger()] == [row["trained"] for row in alone.ledger()]

    spans = sorted((*span, one.name) for one in shared for span in turns(one))
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), "both had the GPUs at once"
    changes = sum(one[2] != other[2] for one, other in pairwise(spans))
    # What one has done before the other wanted the GPUs was no turn; on a busy machine, starts lie seconds apart.
    first, second = sorted(shared, key=asked_at)
    assert changes >= NUM_STEPS - num_steps_before(first, asked_at(second)), f"they took turns: {spans}"
    for status in statuses[1:]:
        report = status["runtime"]["sharing"]
        assert report["numSteps"] == NUM_STEPS - 1
        assert min(report[f"{what}Seconds"] for what in ("wait", "switch", "turn", "step")) > 0
    assert "sharing" not in statuses[0]["runtime"]
    assert any("sharing/wait_s" in row for row in shared[0].metrics())
    for one in (alone, *shared):
        one.delete()
