"""Jobs whose pods are killed again and again, at moments that nobody chose."""

import random

import pytest

from tests.e2e.jobs import Cluster, Job, assert_every_draw_once, fake_job

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(3600)]

NUM_KILLS = 8
MAX_STEPS_BETWEEN = 6
NUM_STEPS = 2 * NUM_KILLS * MAX_STEPS_BETWEEN
"""Twice as many as it makes, so that it does not end before the last kill."""


def disturb(job: Job, chance: random.Random) -> None:
    """Kill a pod after some more steps: the second begins when the one that was killed before is back."""
    job.wait_step(job.status()["runtime"]["step"] + chance.randint(2, MAX_STEPS_BETWEEN))
    job.kill(chance.choice(("coordinator", "worker-0")))


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_loses_pods_again_and_again_trains_every_draw_once(cluster: Cluster, seed: int) -> None:
    algorithm = {"steps": NUM_STEPS, "promptsPerStep": 4, "responsesPerPrompt": 4, "maxResponseTokens": 200, "seed": 3}
    options = {"algorithm": algorithm, "backoffLimit": 2 * NUM_KILLS, "checkpoint": {"everySteps": 1}}
    job = cluster.apply(fake_job(f"unlucky-{seed}", **options))
    job.wait_step(1)
    chance = random.Random(seed)
    for _ in range(NUM_KILLS):
        disturb(job, chance)
    job.wait_step(job.status()["runtime"]["step"] + 1)  # Its back-off alone may take six minutes.
    assert job.wait_finished()["phase"] == "Succeeded", job.story()
    assert_every_draw_once(job.ledger(), num_prompts=4, num_responses=4)
    job.delete()
