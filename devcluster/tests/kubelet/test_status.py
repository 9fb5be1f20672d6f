"""The status of a pod follows from what its containers did."""

import pytest
from devcluster.tests.builders import Json, pod

from longshore_devcluster.kubelet.status import (
    PodRecord,
    Role,
    Running,
    State,
    Terminated,
    Waiting,
    load_pod_record,
    new_records,
    pod_phase,
    pod_status,
)

NOW_S = 1_900_000_000.0
OK = Terminated(0, "Completed", 1.0, 2.0)
BAD = Terminated(1, "Error", 1.0, 2.0)
RUNNING = Running(1.0)
NEW = Waiting("ContainerCreating")
CRASHED = Waiting("CrashLoopBackOff")


def two_containers(policy: str = "Always") -> Json:
    return pod(containers=[{"name": "a"}, {"name": "b"}], restartPolicy=policy)


def record_of(obj: Json, *states: State) -> PodRecord:
    record = PodRecord(new_records(obj), NOW_S, "127.1.1.1", "127.1.0.1")
    for container, state in zip(record.of_role(Role.MAIN), states, strict=True):
        container.state = state
        container.last = BAD if state == CRASHED else None
        container.ready = container.started = isinstance(state, Running)
    return record


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", (NEW, NEW), "Pending"),
        ("Always", (RUNNING, NEW), "Pending"),
        ("Always", (RUNNING, RUNNING), "Running"),
        ("Always", (CRASHED, RUNNING), "Running"),
        ("Always", (OK, OK), "Running"),
        ("Never", (OK, RUNNING), "Running"),
        ("Never", (OK, OK), "Succeeded"),
        ("Never", (OK, BAD), "Failed"),
        ("OnFailure", (OK, OK), "Succeeded"),
        ("OnFailure", (OK, BAD), "Running"),
        ("OnFailure", (OK, CRASHED), "Running"),
    ],
)
def test_phase(policy: str, states: tuple[State, State], phase: str) -> None:
    obj = two_containers(policy)

    assert pod_phase(obj, record_of(obj, *states)) == phase


def test_pod_that_was_stopped_is_over_whatever_its_policy() -> None:
    obj = two_containers("Always")
    record = record_of(obj, OK, BAD)
    record.over = True

    assert pod_phase(obj, record) == "Failed"


def test_init_container_that_failed_for_good_fails_the_pod() -> None:
    obj = pod(initContainers=[{"name": "prepare"}], restartPolicy="Never")
    record = PodRecord(new_records(obj), NOW_S, "", "")
    record.containers[0].state = BAD

    assert pod_phase(obj, record) == "Failed"


def test_pod_is_not_over_while_a_sidecar_still_runs() -> None:
    obj = pod(initContainers=[{"name": "side", "restartPolicy": "Always"}], restartPolicy="Never")
    record = record_of(obj, OK)
    (sidecar,) = record.of_role(Role.SIDECAR)

    sidecar.state = RUNNING
    assert pod_phase(obj, record) == "Running"
    sidecar.state = OK
    assert pod_phase(obj, record) == "Succeeded"


def test_pod_past_its_deadline_has_failed_once_nothing_of_it_runs() -> None:
    obj = two_containers("Never")
    record = record_of(obj, RUNNING, BAD)
    record.failed = ("DeadlineExceeded", "too long")

    status = pod_status(obj, record, NOW_S)
    assert status["phase"] == "Running" and "reason" not in status
    record.containers[0].state = BAD
    status = pod_status(obj, record, NOW_S)
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


def conditions(status: Json) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status["conditions"]}


def test_conditions_of_a_running_pod() -> None:
    obj = two_containers()
    record = record_of(obj, RUNNING, RUNNING)

    assert conditions(pod_status(obj, record, NOW_S)) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }


def test_unready_containers_are_named_and_the_reason_is_cleared_once_they_are_ready() -> None:
    obj = two_containers()
    record = record_of(obj, RUNNING, RUNNING)
    record.containers[1].ready = False

    unready = next(e for e in pod_status(obj, record, NOW_S)["conditions"] if e["type"] == "Ready")
    record.containers[1].ready = True
    ready = next(e for e in pod_status(obj, record, NOW_S + 5)["conditions"] if e["type"] == "Ready")

    assert (unready["reason"], unready["message"]) == (
        "ContainersNotReady",
        "containers with unready status: [b]",
    )
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", None, None)
    assert ready["lastTransitionTime"] != unready["lastTransitionTime"]


def test_readiness_gates_keep_the_pod_unready_but_not_its_containers() -> None:
    obj = two_containers() | {"status": {}}
    obj["spec"]["readinessGates"] = [{"conditionType": "example.com/ok"}]
    found = conditions(pod_status(obj, record_of(obj, RUNNING, RUNNING), NOW_S))

    assert (found["Ready"], found["ContainersReady"]) == ("False", "True")


def test_running_containers_of_an_earlier_kubelet_have_been_lost() -> None:
    obj = two_containers()
    obj["status"] = pod_status(obj, record_of(obj, RUNNING, OK), NOW_S)

    record = load_pod_record(obj, "127.1.1.1", "127.1.0.1", NOW_S + 60)

    lost, ended = [container.state for container in record.containers]
    assert isinstance(lost, Terminated)
    assert (lost.exit_code, lost.reason) == (137, "ContainerStatusUnknown")
    assert isinstance(ended, Terminated)
    assert ended.exit_code == 0
