"""The operator gives a job more reward pods when its rewards fall behind, and ends it at its deadline."""

import time

import pytest

from tests.contract.rewards.endpoint import Reply, serving
from tests.e2e.jobs import Cluster, Json, fake_job

pytestmark = pytest.mark.e2e

SCORING_S = 1.0


def slowly(path: str, body: Json) -> Reply:
    """A scoring service that takes its time."""
    time.sleep(SCORING_S)
    return Reply(body={"reward": 1})


def test_a_slow_reward_gets_a_second_pod_that_scores_until_the_deadline(cluster: Cluster) -> None:
    with serving(slowly) as service:
        slow = {"name": "slow", "kind": "HTTP", "http": {"url": service.address}}
        reward = {"functions": [slow], "pods": 1, "maxPods": 2, "requestsPerPod": 1}
        job = cluster.apply(fake_job("slow-reward", reward=reward, checkpoint={"everySteps": 100}))
        job.wait("two reward pods are wanted", lambda s: s["rewards"]["desired"] == 2)
        job.wait("both score", lambda s: s["runtime"]["rewards"]["workers"] == 2 == s["runtime"]["rewards"]["busy"])
        assert job.status()["phase"] == "Running"
        assert "reward pods from 1 to 2" in cluster.kubectl("describe", "rljob", "slow-reward")
        cluster.kubectl("patch", "rljob", "slow-reward", "--type=merge", "-p", '{"spec": {"activeDeadlineSeconds": 1}}')
        assert job.wait_finished()["phase"] == "Failed"
        assert job.condition("Failed")["reason"] == "DeadlineExceeded"
        job.wait_nothing_runs()
        job.delete()
