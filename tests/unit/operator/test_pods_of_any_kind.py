"""What holds for all pods but the coordinator, on a cluster in memory."""

import pytest

from longshore.api.contract import ExitCode
from longshore.api.status import Phase
from longshore_operator.plan import DeletePod
from tests.unit.operator import test_disaggregated as disaggregated
from tests.unit.operator import test_environment_pods as environment_pods
from tests.unit.operator import test_judge_pools as judge_pools
from tests.unit.operator.model import Cluster, running_cluster


@pytest.fixture(params=["worker", "reward", "trainer", "judge", "environment"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of pods that something happens to."""
    return str(request.param)


@pytest.fixture
def running(kind: str) -> Cluster:
    """A job with several pods of this kind, all ready."""
    specs = {
        "trainer": disaggregated.apart(), "judge": judge_pools.judged(), "environment": environment_pods.playing()
    }  # fmt: skip
    return running_cluster(**specs.get(kind, {"reward": {"pods": 2}}))


def test_a_deleted_pod_is_replaced_within_the_attempt_and_reported(running: Cluster, kind: str) -> None:
    before = running.names()
    running.delete(f"demo-{kind}-1")
    running.step()
    assert running.events[-1].reason == "PodLost"
    assert running.plan().actions == ()
    assert running.condition("Ready")[0] == "False"
    running.reconcile_until_stable()
    assert running.names() == before
    assert (running.status.attempt, running.status.failures) == (1, 0)
    assert running.status.phase is Phase.RUNNING


def test_a_crashed_pod_is_counted_once_and_replaced_after_the_back_off(running: Cluster, kind: str) -> None:
    running.exit(f"demo-{kind}-0", 1, "out of memory")
    running.reconcile_until_stable()
    assert (running.status.attempt, running.status.failures) == (1, 1)
    assert running.status.restart_time == "2026-01-01T00:00:10Z"
    assert running.pods[f"demo-{kind}-0"].terminal, "it stays for its log until it is replaced"
    assert f"demo-{kind}-0 exited with code 1: out of memory" in running.condition("Ready")[2]
    running.pass_time(10)
    running.reconcile_until_stable()
    assert running.status.phase is Phase.RUNNING
    assert (running.status.attempt, running.status.failures) == (1, 1)
    assert not running.pods[f"demo-{kind}-0"].terminal


def test_an_evicted_pod_is_replaced_at_once(running: Cluster, kind: str) -> None:
    before = running.names()
    running.change(f"demo-{kind}-0", phase="Failed", ready=False, reason="Evicted")
    plan = running.step()
    assert [action.name for action in plan.actions if isinstance(action, DeletePod)] == [f"demo-{kind}-0"]
    running.reconcile_until_stable()
    assert (running.names(), running.status.failures) == (before, 0)


def test_a_new_attempt_has_new_pods(running: Cluster) -> None:
    before = running.names()
    running.exit("demo-coordinator", ExitCode.INTERRUPTED)
    running.reconcile_until_stable()
    assert running.names() == before
    assert {pod.attempt for pod in running.pods.values()} == {2}


@pytest.mark.parametrize("code", [ExitCode.SUCCEEDED, ExitCode.USER_ERROR])
def test_pods_are_stopped_when_the_job_ends(running: Cluster, code: ExitCode) -> None:
    running.exit("demo-coordinator", code)
    running.reconcile_until_stable()
    assert running.names() == ["demo-coordinator"]
    counts = (running.status.trainers, running.status.judges, running.status.environments)
    assert [one.desired for one in counts] == [0, 0, 0]
    assert (running.status.gpus.trainer, running.status.gpus.judge) == (0, 0)


def test_an_unschedulable_pod_shows_the_schedulers_words(running: Cluster, kind: str) -> None:
    running.change(f"demo-{kind}-1", scheduled=False, phase="Pending", ready=False, unschedulable="no amd.com/gpu")
    running.step()
    assert running.condition("Scheduled") == ("False", "Unschedulable", f"demo-{kind}-1: no amd.com/gpu")
