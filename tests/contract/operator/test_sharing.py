"""Jobs that take turns on GPUs: real API server, operator and pods; the test says what the coordinators would."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.contract.operator.harness import Jobs, Operator, eventually, job_spec, operators

Start = Callable[[], Operator]
OBJECT = "night-sharing"


@pytest.fixture
def start(jobs: Jobs, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator for the namespace of the test."""
    with operators(jobs, operator_kubeconfig, tmp_path) as start:
        yield start


def create(jobs: Jobs, name: str, limit: float = 9.0, turn_limit_s: int = 3600) -> None:
    sharing = {"group": "night", "maxSlowdown": limit, "turnLimitSeconds": turn_limit_s}
    jobs.create(name, **job_spec(replicas=1), sharing=sharing)
    jobs.wait_phase("Running", name)


def says(jobs: Jobs, name: str, asked: int, returned: int, **figures: Any) -> None:
    attempt = jobs.status(name)["attempt"]
    jobs.report({"attempt": attempt, "sharing": {"asked": asked, "returned": returned, **figures}}, name)


def wait_turns(jobs: Jobs, name: str, granted: int, recalled: int) -> None:
    def look() -> bool:
        found = jobs.status(name).get("sharing", {})
        return (found.get("granted"), found.get("recalled")) == (granted, recalled)

    eventually(f"{name} has turns {granted}, {recalled}; it has {jobs.status(name).get('sharing')}", look)


def group(jobs: Jobs) -> dict[str, Any] | None:
    try:
        found = jobs.cluster.core.read_namespaced_config_map(OBJECT, jobs.namespace)
    except ApiException as error:
        assert error.status == 404
        return None
    content: dict[str, Any] = json.loads(found.data["group.json"])
    return content


def members(jobs: Jobs) -> dict[str, str]:
    """Stage of each member by the name of its job."""
    found = group(jobs) or {"standings": []}
    return {one["member"]["name"].split("/")[0]: one["stage"] for one in found["standings"]}


def test_turns_go_round_and_an_operator_that_restarts_goes_on(jobs: Jobs, start: Start) -> None:
    operator = start()
    create(jobs, "one")
    create(jobs, "two")
    says(jobs, "one", 1, 0)
    wait_turns(jobs, "one", 1, 0)
    says(jobs, "two", 1, 0)
    wait_turns(jobs, "one", 1, 1)
    assert jobs.status("two")["sharing"]["granted"] == 0
    operator.stop(signal.SIGKILL)
    says(jobs, "one", 2, 1)  # Returned, and asks again; nobody is there to hear it.
    start()
    wait_turns(jobs, "two", 1, 1)
    assert jobs.status("one")["sharing"] == {"attempt": 1, "granted": 1, "recalled": 1}
    says(jobs, "two", 1, 1)
    wait_turns(jobs, "one", 2, 1)

    jobs.delete("one")
    says(jobs, "two", 2, 1)
    wait_turns(jobs, "two", 2, 1)
    assert members(jobs) == {"two": "OnTrial"}
    jobs.delete("two")
    eventually("the object of the group is gone with its jobs", lambda: group(jobs) is None)
    eventually("their pods are gone", lambda: not jobs.pods())
    jobs.create("later", **job_spec(replicas=1))
    jobs.wait_phase("Running", "later")  # So the operator has heard of the end of those pods.
    assert group(jobs) is None


def test_a_dead_member_holds_the_gpus_until_its_pods_are_gone(jobs: Jobs, start: Start) -> None:
    start()
    create(jobs, "one")
    create(jobs, "two")
    says(jobs, "one", 1, 0)
    wait_turns(jobs, "one", 1, 0)
    says(jobs, "two", 1, 0)
    wait_turns(jobs, "one", 1, 1)
    jobs.patch({"suspend": True}, "one")
    wait_turns(jobs, "two", 1, 0)
    pods = jobs.pods().items()
    assert not [name for name, pod in pods if name.startswith("one-") and pod.status.phase in ("Pending", "Running")]
    assert "sharing" not in jobs.status("one")


def test_a_member_that_does_not_return_the_gpus_loses_its_attempt(jobs: Jobs, start: Start) -> None:
    start()
    create(jobs, "hung", turn_limit_s=2)
    create(jobs, "two")
    says(jobs, "hung", 1, 0)
    wait_turns(jobs, "hung", 1, 0)
    says(jobs, "two", 1, 0)
    wait_turns(jobs, "two", 1, 0)
    assert "TurnOverdue" in jobs.event_reasons()
    assert jobs.wait_phase("Running", "hung", attempt=2)["failures"] == 0


def test_a_job_that_takes_others_past_their_limits_waits_until_they_end(jobs: Jobs, start: Start) -> None:
    start()
    create(jobs, "one", limit=1.5)
    says(jobs, "one", 1, 0, numSteps=3, stepSeconds=10.0, turnSeconds=6.0)
    eventually("the first is admitted", lambda: members(jobs) == {"one": "Admitted"})
    create(jobs, "two", limit=1.5)
    says(jobs, "two", 1, 0, numSteps=3, stepSeconds=10.0, turnSeconds=6.0)
    jobs.wait_phase("Queued", "two")
    condition = jobs.wait_condition("Sharing", "SharingRefused", "two")
    assert condition["message"].startswith("a step of one could take more than 1.5 times as long as alone")
    eventually("its pods are gone", lambda: not [name for name in jobs.pods() if name.startswith("two-")])
    jobs.delete("one")
    jobs.wait_phase("Running", "two", attempt=2)
