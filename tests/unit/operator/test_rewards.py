"""How the operator sizes the reward pods of a job, on a cluster in memory."""

from typing import Any

import pytest

from longshore.api.contract import ExitCode
from longshore.api.runtime_status import RewardLoad, RuntimeStatus
from longshore.api.status import Phase
from longshore.policy.reward_pods import CALM_S, GROW_PAUSE_S
from tests.unit.operator.model import Cluster, running_cluster

REWARD = {"pods": 1, "maxPods": 4, "workersPerPod": 2}


@pytest.fixture
def running() -> Cluster:
    """A job with one reward pod that may have four, all pods ready."""
    cluster = running_cluster(reward=REWARD)
    cluster.pass_time(60)
    return cluster


def report(cluster: Cluster, load: RewardLoad, *, attempt: int = 1) -> None:
    """The coordinator reports, and the operator looks."""
    runtime = RuntimeStatus(attempt=attempt, rewards=load)
    cluster.status = cluster.status.model_copy(update={"runtime": runtime})
    cluster.reconcile_until_stable()


def rewards(cluster: Cluster) -> list[str]:
    return cluster.names(lambda pod: "-reward-" in pod.name)


def behind(workers: int, **more: Any) -> RewardLoad:
    """All workers are busy, and responses have waited for too long."""
    return RewardLoad(queue_length=100, oldest_wait_s=9.0, workers=workers, busy=workers, **more)


def test_a_job_starts_with_the_fewest_reward_pods(running: Cluster) -> None:
    assert rewards(running) == ["demo-reward-0"]
    assert (running.status.rewards.desired, running.status.rewards.ready) == (1, 1)
    assert running.plan().actions == ()


def test_the_status_says_where_the_pods_are(running: Cluster) -> None:
    """The coordinator connects to them, and to no pod that has ended."""
    address = running.pods["demo-reward-0"].ip
    assert running.status.rewards.addresses[0] == address is not None
    running.change("demo-reward-0", phase="Failed", ready=False, reason="Evicted")
    running.step()
    assert address not in running.status.rewards.addresses


def test_pods_are_added_when_rewards_fall_behind_and_an_event_says_why(running: Cluster) -> None:
    report(running, behind(2))
    assert rewards(running) == ["demo-reward-0", "demo-reward-1"]
    event = running.events[-1]
    assert (event.type, event.reason) == ("Normal", "RewardPodsResized")
    assert event.message == "reward pods from 1 to 2: a response has waited 9 s for a worker"
    assert running.status.rewards.changed_time == "2026-01-01T00:01:00Z"


def test_the_same_report_adds_pods_once_and_again_only_when_their_workers_are_there(running: Cluster) -> None:
    report(running, behind(2))
    running.pass_time(10 * GROW_PAUSE_S)
    report(running, behind(2))
    assert running.status.rewards.desired == 2
    report(running, behind(4))
    assert running.status.rewards.desired == 4
    running.pass_time(10 * GROW_PAUSE_S)
    report(running, behind(8))
    assert running.status.rewards.desired == 4
    assert len([event for event in running.events if event.reason == "RewardPodsResized"]) == 2


def test_a_growing_job_stays_ready_and_running(running: Cluster) -> None:
    runtime = RuntimeStatus(attempt=1, rewards=behind(2))
    running.status = running.status.model_copy(update={"runtime": runtime})
    for _ in range(5):
        running.step()
        assert running.status.phase is Phase.RUNNING
        assert running.condition("Ready")[0] == "True"
        running.kubelet()
    assert running.status.rewards.ready == 2


def test_after_a_calm_period_the_pod_of_highest_index_goes_and_is_not_called_lost(running: Cluster) -> None:
    report(running, behind(2))
    running.pass_time(60)
    report(running, RewardLoad(workers=4))
    plan = running.plan()
    assert plan.requeue_at is not None
    assert (plan.requeue_at - running.now).total_seconds() == CALM_S
    running.now = plan.requeue_at
    running.step()
    assert running.names(lambda pod: pod.deleting) == ["demo-reward-1"]
    assert running.status.phase is Phase.RUNNING
    running.step()
    running.exit("demo-reward-1", ExitCode.INTERRUPTED)
    running.reconcile_until_stable()
    assert rewards(running) == ["demo-reward-0"]
    assert running.status.failures == 0
    assert running.events[-1].message == "reward pods from 2 to 1: 4 workers have had little to do for 120 s"
    assert not any(event.reason == "PodLost" for event in running.events)


def test_a_lost_extra_pod_is_replaced_and_reported(running: Cluster) -> None:
    report(running, behind(2))
    running.delete("demo-reward-1")
    running.reconcile_until_stable()
    assert rewards(running) == ["demo-reward-0", "demo-reward-1"]
    assert running.events[-1].reason == "PodLost"


def test_a_job_does_not_stop_for_a_reward_pod_that_it_can_do_without(running: Cluster) -> None:
    report(running, behind(2))
    running.exit("demo-reward-1", 139, "segmentation fault")
    running.step()
    assert (running.status.phase, running.condition("Ready")[0]) == (Phase.RUNNING, "True")
    assert running.events[-1].message.endswith("segmentation fault; its replacement starts in 60 s")
    running.pass_time(59)
    running.reconcile_until_stable()
    assert (running.status.phase, running.pods["demo-reward-1"].terminal) == (Phase.RUNNING, True)
    running.pass_time(2)
    running.reconcile_until_stable()
    assert running.pods["demo-reward-1"].ready
    assert running.status.failures == 0
    running.exit("demo-reward-0", 139, "segmentation fault")
    running.step()
    assert (running.status.phase, running.status.failures) == (Phase.RESTARTING, 1)


def test_what_an_earlier_attempt_reported_decides_nothing(running: Cluster) -> None:
    report(running, behind(2), attempt=0)
    assert running.status.rewards.desired == 1


def test_a_new_attempt_keeps_the_number_of_pods(running: Cluster) -> None:
    report(running, behind(2))
    running.exit("demo-coordinator", ExitCode.INTERRUPTED)
    running.reconcile_until_stable()
    assert running.status.attempt == 2
    assert rewards(running) == ["demo-reward-0", "demo-reward-1"]


def test_a_suspended_or_finished_job_has_no_reward_pods_and_a_resumed_one_the_fewest(running: Cluster) -> None:
    report(running, behind(2))
    running.spec = {"reward": REWARD, "suspend": True}
    running.reconcile_until_stable()
    assert rewards(running) == []
    assert running.status.rewards.desired == 0
    running.spec = {"reward": REWARD}
    running.reconcile_until_stable()
    assert rewards(running) == ["demo-reward-0"]
    running.exit("demo-coordinator", ExitCode.SUCCEEDED)
    running.reconcile_until_stable()
    assert rewards(running) == []
    assert running.status.rewards.desired == 0


SERVICE: dict[str, Any] = {"name": "service", "kind": "HTTP", "http": {"url": "http://service/"}}


@pytest.mark.parametrize(
    ("functions", "expected"),
    [([SERVICE], {2: 1, 7: 1, 8: 2}), ([SERVICE, {"name": "maths", "kind": "Maths"}], {1: 1, 2: 2, 8: 2})],
    ids=["only-waits", "computes-too"],
)
def test_pods_are_counted_by_their_requests_only_if_no_function_computes(
    functions: list[dict[str, Any]], expected: dict[int, int]
) -> None:
    """A pod has 2 workers and 8 requests: none is added before all of those by which pods are sized have joined."""
    reward = {**REWARD, "functions": functions, "requestsPerPod": 8}
    for num_workers, num_pods in expected.items():
        cluster = running_cluster(reward=reward)
        cluster.pass_time(60)
        report(cluster, behind(num_workers))
        assert cluster.status.rewards.desired == num_pods, num_workers


def test_without_a_maximum_the_number_is_fixed() -> None:
    cluster = running_cluster(reward={"pods": 2})
    report(cluster, behind(4))
    assert rewards(cluster) == ["demo-reward-0", "demo-reward-1"]
    assert cluster.plan().requeue_at is None
